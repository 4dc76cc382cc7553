//! What pages show works: command lines parse, plans have no problems.
#![allow(clippy::unwrap_used)]

use drover_plan::{Moves, Plan};
use drover_stage::pages::{blocks, hold_commands, pages};

use crate::cli::program;

/// Keys that a plan needs, for parts of one.
const NEEDED: [(&str, &str); 5] = [
    ("version", "version: 1\n"),
    ("name", "name: part\n"),
    (
        "source",
        "source: {type: vsphere, endpoint: vcenter.example.org, user: u, password_env: DROVER_PASSWORD}\n",
    ),
    ("target", "target: {type: qemu, folder: /srv/vms}\n"),
    ("vms", "vms: [{name: web01}]\n"),
];

#[test]
fn commands_on_pages_parse() {
    assert!(hold_commands(&program()) > 60);
}

#[test]
fn plans_on_pages_have_no_problems() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for block in blocks(&text, "yaml") {
            seen += 1;
            let has = |key: &str| block.lines().any(|line| line.starts_with(&format!("{key}:")));
            let problems = if has("moves") {
                Moves::parse(block).err()
            } else {
                let missing = NEEDED.iter().filter(|(key, _)| !has(key)).map(|(_, line)| *line);
                Plan::parse(&missing.chain([block, "\n"]).collect::<String>()).err()
            };
            let words =
                |problems: Vec<_>| problems.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join("\n");
            wrong.extend(problems.map(|it| format!("{}:\n{block}\n{}", page.display(), words(it))));
        }
    }
    assert!(seen > 5, "only {seen} plans were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
