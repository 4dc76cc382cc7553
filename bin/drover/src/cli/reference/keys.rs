//! The pages of a plan's keys, made from the schema.

use serde_json::{Map, Value};

use super::MADE;

const HEAD: &str = "\
# Keys of a plan\n\n\
A plan is a YAML file: `drover plan new` writes it, `plan check` reports problems, `plan schema` prints its schema.\n\
Durations: `90s`, `5m`; sizes: `64KiB`. **Bold**: required. [example.yaml](../../crates/plan/example.yaml), \
[libvirt.yaml](../../crates/plan/libvirt.yaml), [kubevirt.yaml](../../crates/plan/kubevirt.yaml).\n\n";

/// Where the VMs come from and go to has a page of its own.
const PLACES: [&str; 2] = ["source", "target"];
const PLACES_PAGE: &str = "plan-source-target.md";

const PLACES_HEAD: &str = "\
# Keys of a plan: source and target\n\n\
The tables of `source` and `target`. All other keys: [keys of a plan](plan-keys.md). **Bold** keys are required.\n\n";

/// So have hooks and checks, which VMs have too.
const CALLS: [&str; 2] = ["hooks", "checks"];
const CALLS_PAGE: &str = "plan-hooks-checks.md";

const CALLS_HEAD: &str = "\
# Keys of a plan: hooks and checks\n\n\
The tables of `hooks` and `checks`, of a plan and of single VMs; how they work: [hooks and checks](../how-to/hooks.md). All other keys: [keys of a plan](plan-keys.md).\n\n";

/// The page that has the tables of a key, if they are not where the key is.
fn page_of(at: &str) -> Option<&'static str> {
    match at.strip_prefix("vms.").unwrap_or(at) {
        _ if PLACES.contains(&at) => Some(PLACES_PAGE),
        name if CALLS.contains(&name) => Some(CALLS_PAGE),
        _ => None,
    }
}

/// The pages: name and text.
pub fn pages() -> [(String, String); 3] {
    let schema = drover_plan::schema();
    let mut writer = Writer { text: format!("{HEAD}{MADE}"), known: Vec::new() };
    writer.table("Plan", "", &schema);
    let mut places = Writer { text: format!("{PLACES_HEAD}{MADE}"), known: Vec::new() };
    for name in PLACES {
        for (kind, object) in objects(&schema["properties"][name]) {
            places.table(&format!("`{name}`{kind}"), name, object);
        }
    }
    let mut calls = Writer { text: format!("{CALLS_HEAD}{MADE}"), known: Vec::new() };
    for name in CALLS {
        for (kind, object) in objects(&schema["properties"][name]) {
            calls.table(&format!("`{name}`{kind}"), name, object);
        }
    }
    [
        ("plan-keys.md".to_string(), writer.text),
        (PLACES_PAGE.to_string(), places.text),
        (CALLS_PAGE.to_string(), calls.text),
    ]
}

struct Writer {
    text: String,
    /// Tables that are written, so that one that is used twice is written once.
    known: Vec<(Value, String)>,
}

impl Writer {
    /// One table, and those of the keys in it.
    fn table(&mut self, title: &str, path: &str, schema: &Value) {
        let Some(properties) = schema["properties"].as_object() else { return };
        self.known.push((schema["properties"].clone(), title.to_string()));
        self.text.push_str(&format!("\n## {title}\n\n| key | holds | meaning |\n|---|---|---|\n"));
        let mut inner: Vec<(String, String, &Value)> = Vec::new();
        for (name, property) in ordered(properties, schema) {
            let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let page = page_of(&at);
            let mut holds = page.map_or_else(|| holds(property), |page| format!("[keys]({page})"));
            for (suffix, object) in objects(property).into_iter().filter(|_| page.is_none()) {
                let is_it = |properties: &Value| *properties == object["properties"];
                let known =
                    self.known.iter().find(|(properties, _)| is_it(properties)).map(|(_, title)| title);
                let coming =
                    inner.iter().find(|(_, _, it)| is_it(&it["properties"])).map(|(title, ..)| title);
                match known.or(coming) {
                    Some(same) => holds = format!("as {same}"),
                    None => inner.push((format!("`{at}`{suffix}"), at.clone(), object)),
                }
            }
            let key = if is_required(name, schema) { format!("**`{name}`**") } else { format!("`{name}`") };
            self.text.push_str(&format!("| {key} | {} | {} |\n", cell(&holds), cell(&meaning(property))));
        }
        for (title, path, schema) in inner {
            self.table(&title, &path, schema);
        }
    }
}

fn is_required(name: &str, schema: &Value) -> bool {
    schema["required"].as_array().is_some_and(|it| it.contains(&Value::from(name)))
}

/// Required keys first.
fn ordered<'a>(properties: &'a Map<String, Value>, schema: &Value) -> Vec<(&'a String, &'a Value)> {
    let place =
        |name: &str| schema["required"].as_array().and_then(|it| it.iter().position(|key| key == name));
    let mut keys: Vec<_> = properties.iter().collect();
    keys.sort_by_key(|(name, _)| place(name).unwrap_or(usize::MAX));
    keys
}

/// The tables that a key may hold, and what is put behind its name for each.
fn objects(property: &Value) -> Vec<(String, &Value)> {
    let kind = |object: &Value| match object["properties"]["type"]["enum"][0].as_str() {
        Some(kind) => format!(" of type {kind}"),
        None => String::new(),
    };
    let has_keys =
        |value: &&Value| value["properties"].is_object() && value["properties"].get("sampled").is_none();
    let mut found: Vec<(String, &Value)> = Vec::new();
    found.extend(Some(property).filter(has_keys).map(|it| (String::new(), it)));
    found.extend(Some(&property["items"]).filter(has_keys).map(|it| (", each".to_string(), it)));
    found.extend(
        Some(&property["additionalProperties"]).filter(has_keys).map(|it| (", each".to_string(), it)),
    );
    found
        .extend(property["anyOf"].as_array().into_iter().flatten().filter(has_keys).map(|it| (kind(it), it)));
    found
}

/// What a key may hold, in a few words.
fn holds(property: &Value) -> String {
    if let Some(words) = property["enum"].as_array() {
        return words
            .iter()
            .filter_map(Value::as_str)
            .map(|it| format!("`{it}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if !objects(property).is_empty() {
        return if property["type"] == "array" { "a list".to_string() } else { "keys, below".to_string() };
    }
    match property["type"].as_str() {
        Some("boolean") => "`true`, `false`".to_string(),
        Some("integer") => match (&property["minimum"], &property["maximum"]) {
            (Value::Number(least), Value::Number(most)) if least.as_i64() >= Some(0) => {
                format!("{least} to {most}")
            }
            _ => "a whole number".to_string(),
        },
        Some("array") => "a list of texts".to_string(),
        Some("object") => "names and texts".to_string(),
        _ if property["anyOf"][0]["enum"].is_array() => {
            "`none`, `full`, `sampled`, `{sampled: N}`".to_string()
        }
        _ if property["anyOf"][1]["type"] == "array" => "text, or a list of texts".to_string(),
        _ if property["anyOf"].is_array() => "a size".to_string(),
        _ => "text".to_string(),
    }
}

fn meaning(property: &Value) -> String {
    let mut text = property["description"].as_str().unwrap_or_default().to_string();
    if let Some(inner) = property["additionalProperties"]["description"].as_str() {
        text = format!("{text} Each text: {inner}.");
    }
    match &property["default"] {
        Value::Null => text,
        Value::String(word) => format!("{text} Default: `{word}`."),
        other => format!("{text} Default: `{other}`."),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("\"*\"", "`\"*\"`").replace(" * ", " `*` ")
}
