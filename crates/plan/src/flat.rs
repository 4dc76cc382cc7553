//! Small YAML files of settings, as a list of keys and values.

use crate::node::{Node, Value, parse};
use crate::problem::{At, Problem};

/// A setting and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatSetting {
    /// Keys of the maps down to it with dots between; items of a list have the list's.
    pub key: String,
    /// As it was written.
    pub value: String,
    /// Where.
    pub at: At,
}

/// Reads a file of settings: a map of values, lists of values, and maps of these.
///
/// # Errors
/// What is wrong with it, and where.
pub fn settings(text: &str) -> Result<Vec<FlatSetting>, Problem> {
    let root = parse(text)?;
    let mut found = Vec::new();
    match root.value {
        Value::Map(_) => collect(String::new(), root, &mut found)?,
        Value::Null => {}
        Value::Scalar { .. } | Value::List(_) => {
            return Err(Problem::error("", "a file of settings is a map").at(root.at));
        }
    }
    Ok(found)
}

fn collect(key: String, node: Node, found: &mut Vec<FlatSetting>) -> Result<(), Problem> {
    let at = node.at;
    match node.value {
        Value::Null => Err(Problem::error(key, "nothing stands here").at(at).advise("leave the key out")),
        Value::Scalar { text, .. } => {
            found.push(FlatSetting { key, value: text, at });
            Ok(())
        }
        Value::List(items) => items.into_iter().try_for_each(|item| collect(key.clone(), item, found)),
        Value::Map(entries) => entries.into_iter().try_for_each(|entry| {
            let key = if key.is_empty() { entry.key } else { format!("{key}.{}", entry.key) };
            collect(key, entry.node, found)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_maps_are_joined_and_lists_repeat_theirs() {
        let found = settings("listen: 0.0.0.0:8420\ntls:\n  key: k.pem\ntargets: [/a, /b]\n").unwrap();
        let pairs: Vec<_> = found.iter().map(|it| (it.key.as_str(), it.value.as_str())).collect();
        assert_eq!(
            pairs,
            [("listen", "0.0.0.0:8420"), ("tls.key", "k.pem"), ("targets", "/a"), ("targets", "/b")]
        );
        assert_eq!(found[1].at.line, 3);
        assert!(settings("- a").is_err() && settings("a:").is_err() && settings("a: [").is_err());
    }
}
