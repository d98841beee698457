//! JSON in lines: how the agent speaks with drivers, and takes its identity.

use serde_json::Value;

pub fn json_line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}
