//! The parts of protobuf's JSON mapping that serde does not know: `null` is the default, numbers may be strings, bytes are
//! base64 of either alphabet.

use std::fmt;

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

/// `null` stands for the default of a field.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An unsigned number, also as a string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Number(pub u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = Number;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number from 0 to 4294967295")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
                let number = u32::try_from(value);
                number.map(Number).map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Number, E> {
                value.parse().map(Number).map_err(|_| E::invalid_value(Unexpected::Str(value), &self))
            }
        }

        deserializer.deserialize_any(NumberVisitor)
    }
}

/// Bytes, in base64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Bytes);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let alphabet = if text.contains(['-', '_']) { URL_SAFE } else { STANDARD };
        let decoded = GeneralPurpose::new(&alphabet, LENIENT).decode(text.as_bytes());
        decoded.map(|bytes| Self(bytes.into())).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Serialize, Deserialize, PartialEq)]
    struct Message {
        #[serde(default, deserialize_with = "or_default")]
        words: Vec<String>,
        #[serde(default, deserialize_with = "or_default")]
        number: Number,
        #[serde(default, deserialize_with = "or_default")]
        data: Base64,
    }

    fn parse(text: &str) -> Result<Message, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn null_and_absent_are_the_same() {
        assert_eq!(parse(r#"{"words":null,"number":null,"data":null}"#).unwrap(), parse("{}").unwrap());
    }

    #[test]
    fn numbers_may_be_strings() {
        assert_eq!(parse(r#"{"number":"12"}"#).unwrap().number, Number(12));
        assert_eq!(parse(r#"{"number":12}"#).unwrap().number, Number(12));
        for wrong in ["-1", "4294967296", "\"x\"", "1.5", "[]"] {
            assert!(parse(&format!("{{\"number\":{wrong}}}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn base64_of_either_alphabet_padded_or_not() {
        for text in ["+/8=", "+/8", "-_8", "-_8="] {
            assert_eq!(parse(&format!(r#"{{"data":"{text}"}}"#)).unwrap().data.0.as_ref(), [0xfb, 0xff]);
        }
        assert!(parse(r#"{"data":"!"}"#).is_err());
    }

    proptest! {
        #[test]
        fn messages_survive(number: u32, bytes in vec(any::<u8>(), 0..100)) {
            let message = Message { words: vec![], number: Number(number), data: Base64(bytes.into()) };
            prop_assert_eq!(parse(&serde_json::to_string(&message).unwrap()).unwrap(), message);
        }
    }
}
