//! The documents hold together: their links lead somewhere, and the README stays short.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

/// A newcomer reads the README from top to bottom.
const README_LINES_MAX: usize = 100;

/// Every page for readers: those at the top, `docs`, `bench` and the lab's own.
fn pages() -> Vec<PathBuf> {
    let root = drover_lab::workspace();
    let mut pages = Vec::new();
    for folder in ["", "docs", "bench", "lab/vsphere-sim", "lab/vddk-standin", "lab/guests"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap().flatten() {
            if entry.path().extension().is_some_and(|it| it == "md") {
                pages.push(entry.path());
            }
        }
    }
    pages
}

/// What the links of a page lead to. A link to the web or within the page is none of these.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|target| {
        let is_web = target.contains("://") || target.starts_with("mailto:");
        !is_web && !target.starts_with('#') && !target.contains(char::is_whitespace)
    })
}

#[test]
fn links_lead_to_files_that_exist() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            let file = target.split('#').next().unwrap();
            seen += 1;
            if !page.parent().unwrap().join(file).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(seen > 50, "no links were found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_index_of_the_documents_names_every_page() {
    let docs = drover_lab::workspace().join("docs");
    let index = std::fs::read_to_string(docs.join("README.md")).unwrap();
    for entry in std::fs::read_dir(&docs).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(
            name == "README.md" || index.contains(&format!("]({name})")),
            "{name} is not in docs/README.md"
        );
    }
}

#[test]
fn the_readme_is_short() {
    let text = std::fs::read_to_string(drover_lab::workspace().join("README.md")).unwrap();
    assert!(text.lines().count() <= README_LINES_MAX, "the README has more than {README_LINES_MAX} lines");
}
