//! What a QEMU can do, by its own words: asked, never guessed from its version.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Commands, migration capabilities and parameters that a QEMU knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ability {
    /// `major.minor.micro`, for people.
    pub version: String,
    commands: BTreeSet<String>,
    capabilities: BTreeSet<String>,
    /// Each with the words it takes, where it takes words.
    parameters: BTreeMap<String, BTreeSet<String>>,
    /// What `blockdev-mirror` takes.
    mirror: BTreeSet<String>,
    /// What `migrate` takes.
    migrate: BTreeSet<String>,
}

impl Ability {
    /// Reads the answers to `query-version`, `query-qmp-schema` and `query-migrate-capabilities`. Whatever is not
    /// understood is a thing that this QEMU cannot do.
    pub fn read(version: &Value, schema: &Value, capabilities: &Value) -> Ability {
        let schema = Schema::of(schema);
        let number = |key: &str| version["qemu"][key].as_u64().unwrap_or_default();
        Ability {
            version: format!("{}.{}.{}", number("major"), number("minor"), number("micro")),
            commands: schema.commands.keys().map(|name| name.to_string()).collect(),
            capabilities: names_of(capabilities, "capability"),
            parameters: schema.arguments("migrate-set-parameters"),
            mirror: schema.arguments("blockdev-mirror").into_keys().collect(),
            migrate: schema.arguments("migrate").into_keys().collect(),
        }
    }

    /// Whether it knows a command.
    pub fn knows(&self, command: &str) -> bool {
        self.commands.contains(command)
    }

    /// Whether it has a migration capability.
    pub fn has(&self, capability: &str) -> bool {
        self.capabilities.contains(capability)
    }

    /// Whether it takes a migration parameter.
    pub fn takes(&self, parameter: &str) -> bool {
        self.parameters.contains_key(parameter)
    }

    /// Whether a migration parameter may have a value, which is a word.
    pub fn takes_word(&self, parameter: &str, word: &str) -> bool {
        self.parameters.get(parameter).is_some_and(|words| words.contains(word))
    }

    /// Whether it tells the connections of a move apart by what they begin with, in whatever order they come. That came
    /// with 8.0 and is in no schema; this capability came with 8.1 and stands for it.
    pub fn tells_connections_apart(&self) -> bool {
        self.has("switchover-ack")
    }

    /// Whether it says so where it cannot do post-copy after many connections: then both may be asked for. 7.2 takes both without
    /// a word, though they did not work together before 10.1; 8.1, which is told as above, refuses.
    pub fn judges_postcopy_after_many(&self) -> bool {
        self.has("switchover-ack")
    }

    /// Whether guests were seen to lose writes by it in post-copy: 11.1.3, under software emulation on a busy core. No schema
    /// tells a defect, so this goes by the version, and only warns.
    pub fn was_seen_to_lose_writes_ahead(&self) -> bool {
        self.version.starts_with("11.")
    }

    /// Whether it makes a new line for a move whose line broke in post-copy, as its source and as its target.
    pub fn recovers(&self) -> bool {
        self.migrate.contains("resume") && self.knows("migrate-recover")
    }

    /// Whether `blockdev-mirror` takes an argument.
    pub fn mirror_takes(&self, argument: &str) -> bool {
        self.mirror.contains(argument)
    }
}

/// What such a QEMU does: see [`loses_writes`].
pub const LOSES_WRITES: &str = "QEMU before 8.0 loses writes when it migrates under software emulation";

/// Whether guests were seen to lose writes when a QEMU of this version migrated them (7.2: one in five to one in two). No schema tells a
/// defect, so this goes by the version, and only warns.
#[must_use]
pub fn loses_writes(version: &str, is_emulated: bool) -> bool {
    let major: Option<u32> = version.split('.').next().and_then(|it| it.trim().parse().ok());
    is_emulated && major.is_some_and(|major| major < 8)
}

/// The names in a list of objects.
fn names_of(list: &Value, key: &str) -> BTreeSet<String> {
    let name = |entry: &Value| entry[key].as_str().map(str::to_string);
    list.as_array().into_iter().flatten().filter_map(name).collect()
}

/// What `query-qmp-schema` gives: types refer to each other by names without a meaning.
struct Schema<'a> {
    commands: BTreeMap<&'a str, &'a Value>,
    types: BTreeMap<&'a str, &'a Value>,
}

impl<'a> Schema<'a> {
    fn of(schema: &'a Value) -> Schema<'a> {
        let (mut commands, mut types) = (BTreeMap::new(), BTreeMap::new());
        for entry in schema.as_array().into_iter().flatten() {
            let Some(name) = entry["name"].as_str() else { continue };
            match entry["meta-type"].as_str() {
                Some("command") => commands.insert(name, entry),
                Some("event") => None,
                _ => types.insert(name, entry),
            };
        }
        Schema { commands, types }
    }

    /// What a command takes, each with its words if it is an enumeration.
    fn arguments(&self, command: &str) -> BTreeMap<String, BTreeSet<String>> {
        let of_command = self.commands.get(command).and_then(|entry| entry["arg-type"].as_str());
        let Some(object) = of_command.and_then(|name| self.types.get(name)) else { return BTreeMap::new() };
        let member = |member: &Value| {
            let name = member["name"].as_str()?.to_string();
            Some((name, member["type"].as_str().map(|kind| self.words(kind, 0)).unwrap_or_default()))
        };
        object["members"].as_array().into_iter().flatten().filter_map(member).collect()
    }

    /// The words of an enumeration; of an alternate (a word or `null`), those of its parts.
    fn words(&self, kind: &str, depth: u8) -> BTreeSet<String> {
        let Some(entry) = self.types.get(kind) else { return BTreeSet::new() };
        match entry["meta-type"].as_str() {
            // `values` was there from the beginning, `members` since 6.1 (with features of each).
            Some("enum") => match entry["values"].as_array() {
                Some(values) => values.iter().filter_map(|word| Some(word.as_str()?.to_string())).collect(),
                None => names_of(&entry["members"], "name"),
            },
            Some("alternate") if depth < DEPTH_MAX => {
                let parts = entry["members"].as_array().into_iter().flatten();
                parts
                    .filter_map(|part| part["type"].as_str())
                    .flat_map(|kind| self.words(kind, depth + 1))
                    .collect()
            }
            _ => BTreeSet::new(),
        }
    }
}

/// Alternates in alternates; the schema comes from a peer.
const DEPTH_MAX: u8 = 4;

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A QEMU with these capabilities and parameters; enumerations as `name=word|word`.
    pub fn qemu(version: (u64, u64), capabilities: &[&str], parameters: &[&str]) -> Ability {
        let mut schema =
            vec![json!({"name": "migrate-set-parameters", "meta-type": "command", "arg-type": "1"})];
        let mut members = Vec::new();
        for parameter in parameters {
            let (name, words) = parameter.split_once('=').unwrap_or((parameter, ""));
            let kind = format!("of-{name}");
            members.push(json!({"name": name, "type": kind, "default": null}));
            let words: Vec<&str> = words.split('|').filter(|word| !word.is_empty()).collect();
            schema.push(match words.is_empty() {
                true => json!({"name": kind, "meta-type": "builtin", "json-type": "int"}),
                false => json!({"name": kind, "meta-type": "enum", "values": words}),
            });
        }
        schema.push(json!({"name": "1", "meta-type": "object", "members": members}));
        let capabilities: Vec<Value> =
            capabilities.iter().map(|name| json!({"capability": name, "state": false})).collect();
        let version = json!({"qemu": {"major": version.0, "minor": version.1, "micro": 0}});
        Ability::read(&version, &json!(schema), &json!(capabilities))
    }

    #[test]
    fn old_ones_lose_writes_under_software_emulation_only() {
        for (version, is_emulated, loses) in [
            ("7.2.22", true, true),
            ("7.2.22", false, false),
            ("8.0.0", true, false),
            ("10.0.2", true, false),
            ("", true, false),
        ] {
            assert_eq!(loses_writes(version, is_emulated), loses, "{version}");
        }
    }

    #[test]
    fn words_of_enumerations_old_and_new_and_in_alternates() {
        let schema = json!([
            {"name": "migrate-set-parameters", "meta-type": "command", "arg-type": "9"},
            {"name": "9", "meta-type": "object", "members": [
                {"name": "multifd-compression", "type": "1"},
                {"name": "zero-page-detection", "type": "2"},
                {"name": "mode", "type": "3"},
                {"name": "strange", "type": "nowhere"},
            ]},
            {"name": "1", "meta-type": "enum", "values": ["none", "zstd"]},
            {"name": "2", "meta-type": "enum", "members": [{"name": "legacy"}, {"name": "multifd"}]},
            {"name": "3", "meta-type": "alternate", "members": [{"type": "1"}, {"type": "3"}]},
            {"name": "migrate", "meta-type": "command", "arg-type": "8"},
            {"name": "migrate-recover", "meta-type": "command", "arg-type": "9"},
            {"name": "8", "meta-type": "object", "members": [{"name": "uri"}, {"name": "resume", "default": null}]},
            {"name": "BROKEN"}, 7, null,
            {"name": "EVENT", "meta-type": "event", "arg-type": "9"},
        ]);
        let ability = Ability::read(&json!({}), &schema, &json!([{"capability": "multifd"}, 3]));
        assert!(ability.takes_word("multifd-compression", "zstd"));
        assert!(!ability.takes_word("multifd-compression", "zlib"));
        assert!(ability.takes_word("zero-page-detection", "multifd"));
        assert!(ability.takes_word("mode", "zstd"));
        assert!(ability.takes("strange") && !ability.takes("other"));
        assert!(ability.has("multifd") && !ability.has("xbzrle"));
        assert!(ability.recovers() && !Ability::default().recovers());
        assert!(ability.knows("migrate-set-parameters") && !ability.knows("EVENT"));
    }

    #[test]
    fn a_defect_is_known_by_its_version() {
        let seen = |version| qemu(version, &[], &[]).was_seen_to_lose_writes_ahead();
        assert_eq!([(7, 2), (10, 0), (11, 1)].map(seen), [false, false, true]);
    }

    #[test]
    fn nonsense_is_a_qemu_that_can_nothing() {
        for nonsense in [json!(null), json!("x"), json!({"a": []}), json!([[], {"name": 3}])] {
            let ability = Ability::read(&nonsense, &nonsense, &nonsense);
            assert_eq!(ability, Ability { version: "0.0.0".into(), ..Ability::default() });
        }
    }
}
