//! The keys of a plan file as JSON, for those who carry it out elsewhere.

use serde_json::{Map, Number, Value as Json};

use crate::node::{Node, Value, parse};
use crate::problem::Problem;

/// The keys of a plan's text, as they were written: plans read from JSON of these mean the same.
///
/// # Errors
/// If the text is no YAML of one document.
pub fn keys_json(text: &str) -> Result<Json, Problem> {
    parse(text).map(|root| json(&root))
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Scalar { text, quoted } => scalar(text, *quoted),
        Value::List(nodes) => nodes.iter().map(json).collect(),
        Value::Map(entries) => {
            let pairs = entries.iter().map(|entry| (entry.key.clone(), json(&entry.node)));
            Json::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

/// Numbers only where they are written as JSON writes them: all else stays the text that it is.
fn scalar(text: &str, quoted: bool) -> Json {
    match text {
        _ if quoted => Json::from(text),
        "true" => Json::Bool(true),
        "false" => Json::Bool(false),
        _ => match text.parse::<Number>() {
            Ok(number) if number.to_string() == text => Json::Number(number),
            _ => Json::from(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Plan;

    #[test]
    fn values_are_those_that_were_written() {
        let text = "a: {b: [1, 0.5, '2', 08, 1e3, true, yes, ~, text]}\n";
        let expected = json!({"a": {"b": [1, 0.5, "2", "08", "1e3", true, "yes", null, "text"]}});
        assert_eq!(keys_json(text).unwrap(), expected);
        assert!(keys_json("a: [").is_err());
    }

    #[test]
    fn plans_mean_the_same_as_json() {
        for text in [include_str!("../example.yaml"), include_str!("../kubevirt.yaml")] {
            let again = keys_json(text).unwrap().to_string();
            // Places in the text are others, and so is the order of maps.
            let words = |text: &str| {
                let plan = format!("{:?}", Plan::parse(text).unwrap());
                let is_place = |word: &&str| word.starts_with("line:") || word.starts_with("column:");
                let split = |c: char| ",{}[]()".contains(c);
                let mut words: Vec<String> =
                    plan.split(split).map(str::trim).filter(|it| !is_place(it)).map(str::to_string).collect();
                words.sort();
                words
            };
            assert_eq!(words(&again), words(text));
        }
    }
}
