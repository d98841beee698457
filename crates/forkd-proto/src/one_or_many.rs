//! Lists in the place of what earlier versions had at most one of, for `serde(with)`.
//!
//! One is written as it always was, so that programs of either version read what the other has written; only several are
//! written as a list, which an earlier version refuses instead of losing all but the first.
//!
//! | | none | one | several |
//! |---|---|---|---|
//! | this module | `null` | `x` | `[x, y]` |
//! | [`or_default`] | `false`, `0`, `[]` | `x` | `[x, y]` |
//! | [`count`] | `false` | `true` | `2` |

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a, T> {
    One(&'a T),
    Several(&'a [T]),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Read<T> {
    One(T),
    Several(Vec<T>),
}

impl<T> From<Read<T>> for Vec<T> {
    fn from(read: Read<T>) -> Vec<T> {
        match read {
            Read::One(one) => vec![one],
            Read::Several(several) => several,
        }
    }
}

pub fn serialize<T: Serialize, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    match list {
        [] => serializer.serialize_none(),
        [one] => Written::One(one).serialize(serializer),
        several => Written::Several(several).serialize(serializer),
    }
}

pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Read<T>>::deserialize(deserializer)?.map(Vec::from).unwrap_or_default())
}

/// None is written as an empty value, and that is read as one: there is no telling them apart.
pub mod or_default {
    use super::{Deserialize, Deserializer, Read, Serialize, Serializer};

    pub fn serialize<T, S>(list: &[T], serializer: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize + Default,
        S: Serializer,
    {
        match list {
            [] => T::default().serialize(serializer),
            list => super::serialize(list, serializer),
        }
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        Read::deserialize(deserializer).map(Vec::from)
    }
}

/// How many there are, where it was said whether there is one.
pub mod count {
    use super::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Read {
        Whether(bool),
        Count(u8),
    }

    pub fn serialize<S: Serializer>(count: &u8, serializer: S) -> Result<S::Ok, S::Error> {
        match count {
            0 | 1 => serializer.serialize_bool(*count == 1),
            several => serializer.serialize_u8(*several),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        Ok(match Read::deserialize(deserializer)? {
            Read::Whether(whether) => whether.into(),
            Read::Count(count) => count,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Message {
        #[serde(default, rename = "name", with = "super")]
        names: Vec<String>,
        #[serde(rename = "pair", with = "super")]
        pairs: Vec<(u8, String)>,
        #[serde(rename = "numbers", with = "or_default")]
        lists: Vec<Vec<u64>>,
        #[serde(rename = "flag", with = "or_default")]
        flags: Vec<bool>,
        #[serde(rename = "there", with = "count")]
        count: u8,
    }

    fn message(count: u8) -> Message {
        let numbers = || 0..count;
        Message {
            names: numbers().map(|number| format!("n{number}")).collect(),
            pairs: numbers().map(|number| (number, String::new())).collect(),
            lists: numbers().map(|number| vec![number.into()]).collect(),
            flags: numbers().map(|number| number == 0).collect(),
            count,
        }
    }

    fn read(value: Value) -> Message {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn one_is_written_as_it_was_before_there_were_several() {
        let old = json!({"name": "n0", "pair": [0, ""], "numbers": [0], "flag": true, "there": true});
        assert_eq!(serde_json::to_value(message(1)).unwrap(), old);
        assert_eq!(read(old), message(1));
    }

    #[test]
    fn none_is_written_as_it_was() {
        let old = json!({"name": null, "pair": null, "numbers": [], "flag": false, "there": false});
        assert_eq!(serde_json::to_value(message(0)).unwrap(), old);
        let expected = Message { lists: vec![vec![]], flags: vec![false], ..message(0) };
        assert_eq!(read(old), expected);
        let left_out = json!({"pair": null, "numbers": [], "flag": false, "there": false});
        assert_eq!(read(left_out), expected);
    }

    #[test]
    fn several_are_a_list() {
        let new = json!({
            "name": ["n0", "n1"], "pair": [[0, ""], [1, ""]], "numbers": [[0], [1]], "flag": [true, false], "there": 2
        });
        assert_eq!(serde_json::to_value(message(2)).unwrap(), new);
        assert_eq!(read(new), message(2));
        let empty = Message { lists: vec![vec![], vec![]], ..message(2) };
        assert_eq!(read(serde_json::to_value(&empty).unwrap()), empty);
    }
}
