//! Schemas of tools, as clients of all kinds take them.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool};
use serde_json::Value;

/// Without what some clients and providers of models refuse: formats of Rust's integers, and types that are lists. A value that may be
/// left out is not said to be null as well, though it may be.
pub(crate) fn portable(mut tool: Tool) -> Tool {
    tool.input_schema = simplified(&tool.input_schema);
    tool.output_schema = tool.output_schema.as_ref().map(simplified);
    tool
}

fn simplified(schema: &Arc<JsonObject>) -> Arc<JsonObject> {
    let mut value = Value::Object(schema.as_ref().clone());
    simplify(&mut value);
    match value {
        Value::Object(object) => Arc::new(object),
        _ => Arc::clone(schema),
    }
}

fn simplify(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(simplify),
        Value::Object(object) => {
            object.remove("$schema");
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            if object.get("default") == Some(&Value::Null) {
                object.remove("default");
            }
            if let Some(Value::Array(types)) = object.get("type")
                && let [kind, null] = types.as_slice()
                && null == "null"
            {
                let kind = kind.clone();
                object.insert("type".into(), kind);
            }
            if let Some(Value::Array(choices)) = object.get("anyOf")
                && let [Value::Object(one), null] = choices.as_slice()
                && null.get("type").is_some_and(|kind| kind == "null")
            {
                let one = one.clone();
                object.remove("anyOf");
                object.extend(one);
            }
            object.values_mut().for_each(simplify);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_lose_what_clients_refuse() {
        let mut schema = json!({
            "$schema": "x",
            "properties": {
                "format": { "type": "string", "description": "a property of this name stays" },
                "n": { "type": ["integer", "null"], "format": "uint32", "default": null, "minimum": 1 },
                "mode": { "anyOf": [{ "$ref": "#/$defs/Mode" }, { "type": "null" }], "description": "d" },
            },
            "required": ["format"],
        });
        simplify(&mut schema);
        assert_eq!(
            schema,
            json!({
                "properties": {
                    "format": { "type": "string", "description": "a property of this name stays" },
                    "n": { "type": "integer", "minimum": 1 },
                    "mode": { "$ref": "#/$defs/Mode", "description": "d" },
                },
                "required": ["format"],
            })
        );
    }
}
