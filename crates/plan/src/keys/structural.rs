//! The keys of a plan as the schema of a custom resource: what Kubernetes calls structural. Each field has one type, `additionalProperties`
//! stands for maps alone, and whatever else a field may be is not said.

use serde_json::{Map, Value, json};

use super::{Key, Kind, PLAN, Rule, Table, rule, value};

/// Keys that Plans of a cluster do not have: `vms` and `waves` are one map here, whichever entry it is.
const LEFT_OUT: &[&str] = &[
    "version",
    "name",
    // Each worker knows one VM.
    "vms.group",
    "vms.stage",
    "vms.anti_affinity",
    // Programs, and files of a machine.
    "hooks",
    "vms.hooks",
    "waves.hooks",
    "first_boot",
    "vms.first_boot",
    "checks.pre_cutover.command",
    "checks.pre_cutover.shell",
    "checks.post_start.command",
    "checks.post_start.shell",
    "vms.checks.pre_cutover.command",
    "vms.checks.pre_cutover.shell",
    "vms.checks.post_start.command",
    "vms.checks.post_start.shell",
    // Where the source is, and its logins: the Provider says that.
    "source.type",
    "source.endpoint",
    "source.user",
    "source.password_file",
    "source.password_env",
    "source.ca_file",
    "source.thumbprint",
    "source.insecure",
    "source.data.user",
    "source.data.password_file",
    "source.data.password_env",
    "source.data.hosts",
    "source.data.proxies",
    "source.data.vddk",
    // Those in a cluster are in it, and have pods.
    "target.kubeconfig",
    "target.context",
    "target.upload_url",
    "target.upload_ca",
];

/// Needed in a file, and not where the operator knows it.
const KNOWN: &[&str] = &["source", "target.namespace"];

/// As many entries of `vms` as a Plan may have.
const VMS_MAX: u64 = 10_000;

/// The schema of a Plan's keys.
pub fn structural() -> Value {
    let mut schema = object(&PLAN, "");
    schema["description"] = json!("The keys of a plan file, without version, name and where the source is.");
    schema["properties"]["vms"]["maxItems"] = json!(VMS_MAX);
    schema
}

fn is_there(path: &str) -> bool {
    !LEFT_OUT.contains(&path)
}

fn object(table: &Table, path: &str) -> Value {
    let path_of =
        |key: &Key| if path.is_empty() { key.name.to_string() } else { format!("{path}.{}", key.name) };
    let keys = || table.keys.iter().map(|key| (key, path_of(key))).filter(|(_, path)| is_there(path));
    let properties: Map<String, Value> =
        keys().map(|(key, path)| (key.name.to_string(), field(key, &path))).collect();
    let is_required = |(key, path): &(&Key, String)| key.required && !KNOWN.contains(&path.as_str());
    let required: Vec<&str> = keys().filter(is_required).map(|(key, _)| key.name).collect();
    // A key that is not known, or left out, is kept for the operator, which refuses the Plan: dropped, it would move VMs without their hooks, or
    // those that a misspelt `exclude` was to keep.
    let mut object =
        json!({"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": true});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    // Of what is left out none is asked for, and what depends on another key is not said in these schemas.
    let has = |name: &&str| keys().any(|(key, _)| key.name == *name);
    let rules: Vec<Value> = table
        .rules
        .iter()
        .filter_map(|it| match it {
            Rule::Needs(names) => {
                let names: Vec<&str> = names.iter().copied().filter(|name| has(name)).collect();
                let any: Vec<Value> = names.iter().map(|name| json!({"required": [name]})).collect();
                (!any.is_empty()).then(|| json!({"anyOf": any}))
            }
            Rule::NotBoth(one, other) => (has(one) && has(other)).then(|| rule(it)),
            Rule::Together(..) => None,
        })
        .collect();
    if !rules.is_empty() {
        object["allOf"] = json!(rules);
    }
    object
}

fn field(key: &Key, path: &str) -> Value {
    let mut field = match key.kind {
        Kind::One(table) => object(table, path),
        Kind::Many(table) => json!({"type": "array", "items": object(table, path), "minItems": 1}),
        Kind::Named(table) => json!({"type": "object", "additionalProperties": object(table, path)}),
        Kind::Typed(tables) => typed(tables, path),
        Kind::Choice(words) => json!({"type": "string", "enum": words}),
        Kind::Texts(_) => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        // A text or a number.
        Kind::Size(..) => json!({"x-kubernetes-int-or-string": true}),
        // A word or a list, a word or a map: drover judges what is in it.
        Kind::Windows | Kind::Verify | Kind::WordOr(..) => {
            json!({"x-kubernetes-preserve-unknown-fields": true})
        }
        Kind::Text
        | Kind::Path
        | Kind::PlanName
        | Kind::Site
        | Kind::Thumbprint
        | Kind::Duration
        | Kind::Interval
        | Kind::Cutover
        | Kind::Number(..)
        | Kind::Priority
        | Kind::Moment
        | Kind::Flag
        | Kind::TextList => value(key.kind),
    };
    field["description"] = json!(key.doc);
    field
}

/// The one of several tables that the operator takes.
fn typed(tables: &[(&str, &Table)], path: &str) -> Value {
    let taken = |(kind, _): &&(&str, &Table)| ["vsphere", "kubevirt"].contains(kind);
    tables.iter().find(taken).map_or(Value::Null, |(_, table)| object(table, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each place of a schema, with its path.
    fn walk(schema: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
        see(path, schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(field, &path, see);
        }
        for below in ["items", "additionalProperties"] {
            if schema[below].is_object() {
                walk(&schema[below], path, see);
            }
        }
    }

    #[test]
    fn each_field_has_a_type_and_what_is_left_out_is_not_there() {
        let mut seen = Vec::new();
        walk(&structural(), "", &mut |path, field| {
            let is_open = field["x-kubernetes-preserve-unknown-fields"] == true;
            let is_either = field["x-kubernetes-int-or-string"] == true;
            assert!(field["type"].is_string() || is_open || is_either, "{path}: {field}");
            assert!(
                field["anyOf"].is_null() && (field["enum"].is_null() || field["type"] == "string"),
                "{path}"
            );
            seen.push(path.to_string());
        });
        for path in LEFT_OUT {
            assert!(!seen.iter().any(|it| it == path), "{path}");
        }
        for path in [
            "source.data.nfc",
            "target.storage_class",
            "vms.warm.cutover",
            "waves.after",
            "freezes",
            "limits.memory",
        ] {
            assert!(seen.iter().any(|it| it == path), "{path}");
        }
        // Keys that nothing has would be left out for nothing.
        let mut file = Vec::new();
        let whole = super::super::schema();
        for at in ["source", "target"] {
            whole["properties"][at]["anyOf"].as_array().into_iter().flatten().for_each(|it| {
                walk(it, at, &mut |path, _| file.push(path.to_string()));
            });
        }
        walk(&whole, "", &mut |path, _| file.push(path.to_string()));
        for path in LEFT_OUT.iter().chain(KNOWN) {
            assert!(file.iter().any(|it| it == path), "{path} is no key of a plan");
        }
    }

    #[test]
    fn what_the_operator_takes_fits() {
        let validator = jsonschema::validator_for(&structural()).unwrap();
        let plan = |vms: Value| {
            json!({"target": {"type": "kubevirt", "size_unit": "1GiB", "rate_limit": ["500m"]}, "vms": vms,
                "source": {"data": {"path": "https"}}, "verify": {"sampled": 10}, "limits": {"vms_per_host": 3},
                "waves": [{"name": "pilot", "window": ["22:00-06:00"], "until": "2026-12-02T06:00:00Z"}], "freezes": "2026-12-24",
                "networks": {"*": "pod:masquerade"}, "warm": {"cutover": "auto", "interval": "5m"}, "shutdown_timeout": "90s"})
        };
        let fits = |plan: &Value| validator.validate(plan).map_err(|error| error.to_string());
        assert_eq!(fits(&plan(json!([{"glob": "web*", "wave": "pilot", "priority": 7}]))), Ok(()));
        for (wrong, vms) in [
            ("a VM that nothing selects", json!([{"wave": "pilot"}])),
            ("no VM", json!([])),
            ("a word that is none", json!([{"name": "a", "mode": "lukewarm"}])),
            ("a text for a number", json!([{"name": "a", "priority": "high"}])),
            ("no moment", json!([{"name": "a", "deadline": "soon"}])),
        ] {
            assert!(fits(&plan(vms)).is_err(), "{wrong}");
        }
        let without = |key: &str| {
            let mut plan = plan(json!([{"name": "a"}]));
            plan.as_object_mut().unwrap().remove(key);
            fits(&plan)
        };
        assert!(without("target").is_err() && without("vms").is_err() && without("source").is_ok());
    }
}
