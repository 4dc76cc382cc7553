//! Tests that docs/dev/testing.md names are there.
#![allow(clippy::unwrap_used)]

use std::path::Path;

/// Words between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Rows of the table that name tests: files, each with the tests after it that are said to be in it.
fn named(text: &str) -> Vec<(&str, Vec<&str>)> {
    let table =
        text.split("## What went wrong in other tools").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        for word in quoted(row) {
            if word.ends_with(".rs") {
                found.push((word, Vec::new()));
            } else {
                found.last_mut().unwrap_or_else(|| panic!("{word} is in no file")).1.push(word);
            }
        }
    }
    found
}

#[test]
fn the_tests_that_the_docs_name_are_there() {
    let root = drover_lab::workspace();
    let text = std::fs::read_to_string(root.join("docs/dev/testing.md")).unwrap();
    let all = named(&text);
    assert!(all.len() > 20, "the table was not found: {all:?}");
    for (file, tests) in all {
        assert!(!tests.is_empty(), "no test of {file} is named");
        let source = std::fs::read_to_string(root.join(Path::new(file)))
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        for test in tests {
            assert!(
                source.contains(&format!("#[test]\nfn {test}()"))
                    || source.contains(&format!("#[test]\n    fn {test}()")),
                "{file} has no test {test}"
            );
        }
    }
}
