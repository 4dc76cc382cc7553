//! Files of live moves: a list of them, and at the top what holds for all. What each key means and may hold is the affair of
//! whoever moves; here it is a key with texts, and its place.

use crate::node::{Entry, Node, Value, parse};
use crate::problem::{At, Problem, sort};

/// A file of moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// What stands at the top.
    pub top: Vec<Setting>,
    /// What stands at each move.
    pub moves: Vec<OneMove>,
}

/// A move of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneMove {
    /// Where it stands.
    pub at: At,
    /// What stands there.
    pub settings: Vec<Setting>,
}

/// A key and what it holds: one text, or a list of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// As it was written.
    pub key: String,
    /// As they were written.
    pub values: Vec<String>,
    /// Where it stands.
    pub at: At,
}

/// Moves of one file; more at once are no affair of one program on one host.
pub const MOVES_MAX: usize = 64;

impl Moves {
    /// Reads a file of moves.
    ///
    /// # Errors
    /// Every mistake in it, in the order of the file.
    pub fn parse(text: &str) -> Result<Moves, Vec<Problem>> {
        let root = parse(text).map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        let mut moves = Moves::default();
        for entry in entries(&root, "", &mut problems) {
            match entry.key.as_str() {
                "moves" => moves.moves = list(entry, &mut problems),
                _ => moves.top.extend(setting(entry, "", &mut problems)),
            }
        }
        if moves.moves.is_empty() && problems.is_empty() {
            let problem = Problem::error("moves", "there are none").at(root.at);
            problems
                .push(problem.advise("list them: `moves:`, and below `- name: web01` with `from` and `to`"));
        }
        sort(&mut problems);
        if problems.is_empty() { Ok(moves) } else { Err(problems) }
    }
}

fn list(entry: &Entry, problems: &mut Vec<Problem>) -> Vec<OneMove> {
    let Value::List(nodes) = &entry.node.value else {
        let found = format!("a list is wanted, this is {}", entry.node.describe());
        problems.push(Problem::error("moves", found).at(entry.node.at));
        return Vec::new();
    };
    if nodes.len() > MOVES_MAX {
        let found = format!("there are {} of them, {MOVES_MAX} are the most", nodes.len());
        problems.push(Problem::error("moves", found).at(entry.at).advise("split the file"));
        return Vec::new();
    }
    let one = |(number, node): (usize, &Node)| {
        let path = format!("moves[{number}]");
        let found = entries(node, &path, problems);
        let settings = found.into_iter().filter_map(|entry| setting(entry, &path, problems)).collect();
        OneMove { at: node.at, settings }
    };
    nodes.iter().enumerate().map(one).collect()
}

/// Entries of a map, each key once.
fn entries<'a>(node: &'a Node, path: &str, problems: &mut Vec<Problem>) -> Vec<&'a Entry> {
    let Value::Map(entries) = &node.value else {
        let found = format!("a map is wanted, this is {}", node.describe());
        problems.push(Problem::error(path, found).at(node.at));
        return Vec::new();
    };
    let mut known: Vec<&Entry> = Vec::new();
    for entry in entries {
        match known.iter().any(|other| other.key == entry.key) {
            true => problems.push(Problem::error(below(path, entry), "it is here twice").at(entry.at)),
            false => known.push(entry),
        }
    }
    known
}

fn setting(entry: &Entry, path: &str, problems: &mut Vec<Problem>) -> Option<Setting> {
    let text = |node: &Node| match &node.value {
        Value::Scalar { text, .. } => Some(text.clone()),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    };
    let values = match &entry.node.value {
        Value::List(nodes) => nodes.iter().map(text).collect(),
        Value::Null => Some(Vec::new()),
        Value::Scalar { .. } | Value::Map(_) => text(&entry.node).map(|text| vec![text]),
    };
    if values.is_none() {
        let problem = Problem::error(below(path, entry), "a text or a list of texts is wanted");
        problems.push(problem.at(entry.node.at));
    }
    Some(Setting { key: entry.key.clone(), values: values?, at: entry.at })
}

fn below(path: &str, entry: &Entry) -> String {
    if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_for_all_and_for_each() {
        let text = "rate_max: 8g\nallow: [throttle, postcopy]\nmoves:\n  - from: a\n    to: b\n  - {from: c, p2p: true}\n";
        let moves = Moves::parse(text).unwrap();
        let top: Vec<&str> = moves.top.iter().map(|setting| setting.key.as_str()).collect();
        assert_eq!(top, ["rate_max", "allow"]);
        assert_eq!(moves.top[1].values, ["throttle", "postcopy"]);
        assert_eq!(moves.moves[1].at, At { line: 6, column: 5 });
        let last = &moves.moves[1].settings[1];
        assert_eq!((last.key.as_str(), last.values.as_slice()), ("p2p", &["true".to_string()][..]));
    }

    #[test]
    fn every_mistake_is_told_with_its_place() {
        let text = "line: {a: b}\nline: 1g\nmoves:\n  - from: [x, {}]\n  - web01\n";
        let told: Vec<String> = Moves::parse(text).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "1:7: error: line: a text or a list of texts is wanted",
                "2:1: error: line: it is here twice",
                "4:11: error: moves[0].from: a text or a list of texts is wanted",
                "5:5: error: moves[1]: a map is wanted, this is a single value",
            ]
        );
    }

    #[test]
    fn a_file_without_moves_or_with_too_many_is_refused() {
        for text in ["line: 1g\n", "moves: []\n", "moves: a\n", "- a\n", ""] {
            assert_eq!(Moves::parse(text).unwrap_err().len(), 1, "{text}");
        }
        let many = |number: usize| format!("moves:\n{}", "  - {from: a}\n".repeat(number));
        assert!(Moves::parse(&many(MOVES_MAX)).is_ok());
        assert!(Moves::parse(&many(MOVES_MAX + 1)).unwrap_err()[0].message.contains("65"));
    }
}
