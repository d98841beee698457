//! Bytes that are a string in JSON, in base64.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// Any bytes. A field of this type is `#[schema(inline)]`: to clients it is a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Data(pub Bytes);

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Data::from).map_err(D::Error::custom)
    }
}

impl PartialSchema for Data {
    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl ToSchema for Data {}

impl<T: Into<Bytes>> From<T> for Data {
    fn from(bytes: T) -> Data {
        Data(bytes.into())
    }
}
