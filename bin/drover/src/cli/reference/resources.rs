//! The keys of a plan in the schema of Plans, in `deploy/crds.yaml`.
#![allow(clippy::unwrap_used)]

use serde_json::{Map, Value};

/// Where that is among the reference's pages.
pub const NAME: &str = "../../deploy/crds.yaml";
/// The line before it, and the one after it.
const BEGIN: &str = "                # The keys of a plan file, made from the code by `make reference`.\n";
const END: &str = "            status:\n";
const INDENT: usize = 16;

/// The resources with the keys as the code has them now.
pub fn text(now: &str) -> String {
    let (before, rest) = now.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let mut text = format!("{before}{BEGIN}");
    write(&mut text, "plan", &drover_plan::structural(), INDENT);
    text + END + after
}

/// A schema as YAML: fields one below the other, and each that has none in it on a line, as JSON.
fn write(text: &mut String, name: &str, schema: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    let below = ["properties", "items", "additionalProperties"];
    let is_deep = |schema: &Map<String, Value>| below.iter().any(|key| schema.contains_key(*key));
    let Some(fields) = schema.as_object().filter(|schema| is_deep(schema)) else {
        text.push_str(&format!("{pad}{name}: {schema}\n"));
        return;
    };
    text.push_str(&format!("{pad}{name}:\n"));
    for (key, value) in fields.iter().filter(|(key, _)| !below.contains(&key.as_str())) {
        text.push_str(&format!("{pad}  {key}: {value}\n"));
    }
    for key in ["items", "additionalProperties"].into_iter().filter(|key| fields.contains_key(*key)) {
        write(text, key, &fields[key], indent + 2);
    }
    if let Some(properties) = fields.get("properties").and_then(Value::as_object) {
        text.push_str(&format!("{pad}  properties:\n"));
        properties.iter().for_each(|(key, value)| write(text, key, value, indent + 4));
    }
}
