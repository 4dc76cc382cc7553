//! `scripts/mutants-together`: mutation testing where building is what takes long, with all mutants of cargo-mutants in one test program.
//!
//! Each function gets the bodies of all its mutants beside its own, and `DROVER_MUTANT` says which of them is run; so the crate is built once (and once more
//! after each round of mutants that do not compile are taken out), and a mutant costs one run of the tests. A second run without `--skip`, over the survivors
//! (`--again`), keeps slow tests for the few that need them. Mutants outside of functions (constants) and in const functions are built one by one.
//!
//! The source is copied to `target/mutants-together/PACKAGE`; `results.json` there names each mutant and what became of it.
//!
//! ```text
//! asked   the command line
//! weave   pure: all mutants of a file in one text
//! tree    a copy of the workspace, in which they are built
//! run     what the tests say of a mutant
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod asked;
mod run;
mod tree;
mod weave;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use drover_lab::workspace;
use serde::{Deserialize, Serialize};

use crate::asked::{Asked, USAGE};
use crate::run::{Outcome, Tests};
use crate::tree::{Built, Tree};
use crate::weave::{Mutant, SELECTOR, Text, regions, woven};

/// What became of a mutant.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Fate {
    name: String,
    file: String,
    result: Outcome,
    by: String,
}

/// Seconds of a processor that the tests may take without a mutant.
const BASE_SECONDS: u64 = 600;

/// Messages of the compiler shown where none of them lies in a mutant.
const SHOWN_MAX: usize = 5;

fn main() -> ExitCode {
    let result = match Asked::read(std::env::args().skip(1)) {
        Ok(Some(asked)) => all(&asked),
        Ok(None) => {
            println!("{USAGE}");
            Ok(())
        }
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants-together: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn all(asked: &Asked) -> Result<()> {
    let mut mutants = listed(asked)?;
    if let Some(again) = &asked.again {
        let fates = read_fates(again)?;
        let left: HashSet<&str> = fates
            .iter()
            .filter(|fate| fate.result == Outcome::Survived)
            .map(|fate| fate.name.as_str())
            .collect();
        mutants.retain(|mutant| left.contains(mutant.name.as_str()));
    }
    let known = asked.resume.as_deref().map(read_fates).transpose()?.unwrap_or_default();
    let done: HashSet<&str> = known.iter().map(|fate| fate.name.as_str()).collect();
    mutants.retain(|mutant| !done.contains(mutant.name.as_str()));

    let tree = Tree::new(&asked.package)?;
    let mut files: BTreeMap<String, Vec<Mutant>> = BTreeMap::from([(tree.lib(), Vec::new())]);
    for mutant in &mutants {
        files.entry(mutant.file.clone()).or_default().push(mutant.clone());
    }
    let together = build_together(&tree, &files)?;
    let tests = Tests { tree: &tree, skip: &asked.skip };
    let started = Instant::now();
    let (base, by) = tests.run(&together.program, 0, BASE_SECONDS)?;
    if base != Outcome::Survived {
        bail!("the tests fail without a mutant: {base} {by}");
    }
    println!(
        "{} mutants, {} do not compile, {} to be built alone; the tests take {:.1} s",
        mutants.len(),
        together.out.len(),
        together.alone.len(),
        started.elapsed().as_secs_f64()
    );

    let mut results = Results { path: tree.place().join("results.json"), fates: known.clone() };
    for mutant in mutants.iter().filter(|it| together.out.contains(&it.number)) {
        results.note(mutant, Outcome::NotCompiled, "")?;
    }
    let apart: BTreeSet<u32> = together.alone.iter().map(|mutant| mutant.number).collect();
    for mutant in
        mutants.iter().filter(|it| !together.out.contains(&it.number) && !apart.contains(&it.number))
    {
        let (outcome, by) = tests.run(&together.program, mutant.number, asked.timeout)?;
        results.note(mutant, outcome, &by)?;
    }
    files.keys().try_for_each(|name| tree.restore(name))?;
    for mutant in together.alone.iter().filter(|_| asked.alone) {
        let (outcome, by) = alone(&tree, &tests, mutant, asked.timeout)?;
        results.note(mutant, outcome, &by)?;
    }
    results.tell();
    Ok(())
}

/// The mutants, each with a number.
fn listed(asked: &Asked) -> Result<Vec<Mutant>> {
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json", "-p", &asked.package])
        .args(["--exclude-re", "impl (fmt::)?(Display|Debug) for"])
        .current_dir(workspace())
        .output()?;
    if !output.status.success() {
        bail!("cargo mutants: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut mutants: Vec<Mutant> =
        serde_json::from_slice(&output.stdout).context("the list of cargo mutants")?;
    mutants
        .retain(|mutant| asked.files.is_empty() || asked.files.iter().any(|part| mutant.file.contains(part)));
    (1..).zip(&mut mutants).for_each(|(number, mutant)| mutant.number = number);
    Ok(mutants)
}

fn read_fates(path: &Path) -> Result<Vec<Fate>> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// All mutants that compile in one program.
struct Together {
    program: PathBuf,
    /// Numbers of those that do not compile.
    out: BTreeSet<u32>,
    /// Those that must be built one by one.
    alone: Vec<Mutant>,
}

/// Builds, taking out what does not compile until all does.
fn build_together(tree: &Tree, files: &BTreeMap<String, Vec<Mutant>>) -> Result<Together> {
    let mut out = BTreeSet::new();
    loop {
        let (mut places, mut alone) = (BTreeMap::new(), Vec::new());
        for (name, mutants) in files {
            tree.restore(name)?;
            let left: Vec<Mutant> = mutants.iter().filter(|it| !out.contains(&it.number)).cloned().collect();
            let (mut text, apart) = woven(&Text::read(&workspace().join(name))?, &left)?;
            alone.extend(apart);
            if *name == tree.lib() {
                text.push_str(SELECTOR);
            }
            tree.write(name, &text)?;
            places.insert(name.as_str(), regions(&text)?);
        }
        let errors = match tree.build()? {
            Built::Program(program) => return Ok(Together { program, out, alone }),
            Built::Not(errors) => errors,
        };
        let mut found = BTreeSet::new();
        for span in errors.iter().flat_map(|error| &error.spans) {
            let regions = places.get(span.file_name.as_str()).into_iter().flatten();
            found.extend(regions.filter(|it| it.holds(span.line_start)).map(|it| it.number));
        }
        println!("{} do not compile", found.len());
        if found.is_empty() {
            let words: Vec<&str> =
                errors.iter().take(SHOWN_MAX).map(|error| error.rendered.as_str()).collect();
            bail!("{}", words.join("\n"));
        }
        out.extend(found);
    }
}

/// Builds the crate with one mutant in it, and runs its tests.
fn alone(tree: &Tree, tests: &Tests<'_>, mutant: &Mutant, seconds: u64) -> Result<(Outcome, String)> {
    let source = Text::read(&workspace().join(&mutant.file))?;
    tree.write(&mutant.file, &source.with(mutant)?)?;
    let found = match tree.build()? {
        Built::Program(program) => tests.run(&program, 0, seconds)?,
        Built::Not(_) => (Outcome::NotCompiled, String::new()),
    };
    tree.restore(&mutant.file)?;
    Ok(found)
}

/// What is known by now; also in a file, for a run that goes on.
struct Results {
    path: PathBuf,
    fates: Vec<Fate>,
}

impl Results {
    fn note(&mut self, mutant: &Mutant, result: Outcome, by: &str) -> Result<()> {
        println!("{:<13} {} {by}", result.to_string(), mutant.name);
        let (name, file) = (mutant.name.clone(), mutant.file.clone());
        self.fates.push(Fate { name, file, result, by: by.to_string() });
        let text = serde_json::to_string_pretty(&self.fates)?;
        std::fs::write(&self.path, text).with_context(|| self.path.display().to_string())
    }

    fn tell(&self) {
        for result in [Outcome::Caught, Outcome::Timeout, Outcome::NotCompiled, Outcome::Survived] {
            println!("{result}: {}", self.fates.iter().filter(|fate| fate.result == result).count());
        }
    }
}
