//! Messages between processes: any bytes decode or are refused, and what decodes survives the wire.

#![no_main]

use std::fmt::Debug;

use forkd_proto::control::{Message, Request};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|bytes: &[u8]| {
    if let Some(request) = decoded::<Request>(bytes) {
        request.command.descriptors();
    }
    decoded::<Message>(bytes);
});

fn decoded<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let again = serde_json::to_vec(&value).unwrap();
    assert_eq!(serde_json::from_slice::<T>(&again).unwrap(), value);
    Some(value)
}
