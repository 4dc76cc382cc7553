//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

pub const USAGE: &str = "\
Mutation testing of a crate with all its mutants in one test program.

    scripts/mutants-together PACKAGE [--file PART]... [--skip TEST]... [--again RESULT] [--resume RESULT]
                             [--timeout S] [--no-alone]

  --file PART       only files whose path holds this
  --skip TEST       tests that are left out
  --again RESULT    results of a run whose survivors are tried again
  --resume RESULT   results of a run that was stopped; what is in it is not run again
  --timeout S       seconds of a processor for each mutant [10]
  --no-alone        leave out what must be built one by one";

/// What is asked for.
#[derive(Debug, PartialEq)]
pub struct Asked {
    pub package: String,
    pub files: Vec<String>,
    pub skip: Vec<String>,
    pub again: Option<PathBuf>,
    pub resume: Option<PathBuf>,
    pub timeout: u64,
    pub alone: bool,
}

impl Asked {
    /// Reads the arguments; nothing if only the usage is asked for.
    pub fn read(mut words: impl Iterator<Item = String>) -> Result<Option<Asked>> {
        let mut package = None;
        let (files, skip) = (Vec::new(), Vec::new());
        let mut asked = Asked {
            package: String::new(),
            files,
            skip,
            again: None,
            resume: None,
            timeout: 10,
            alone: true,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} wants a value"));
            match word.as_str() {
                "--help" | "-h" => return Ok(None),
                "--file" => asked.files.push(value()?),
                "--skip" => asked.skip.push(value()?),
                "--again" => asked.again = Some(value()?.into()),
                "--resume" => asked.resume = Some(value()?.into()),
                "--timeout" => {
                    let seconds = value()?;
                    let number = seconds.parse().ok().filter(|seconds| *seconds > 0);
                    asked.timeout =
                        number.with_context(|| format!("--timeout {seconds} is no number of seconds"))?;
                }
                "--no-alone" => asked.alone = false,
                _ if word.starts_with('-') => bail!("{word} is not known; see --help"),
                _ if package.is_some() => bail!("{word}: one package at a time"),
                _ => package = Some(word),
            }
        }
        asked.package = package.context("name a package, such as drover-copy; see --help")?;
        Ok(Some(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Asked>> {
        Asked::read(text.split_whitespace().map(str::to_string))
    }

    #[test]
    fn arguments_are_read_and_what_makes_no_sense_is_refused() {
        let asked =
            read("drover-copy --file a.rs --skip x --file b --timeout 7 --no-alone").unwrap().unwrap();
        assert_eq!((asked.package.as_str(), asked.timeout, asked.alone), ("drover-copy", 7, false));
        assert_eq!((asked.files, asked.skip), (vec!["a.rs".into(), "b".into()], vec!["x".into()]));
        assert_eq!(read("--help").unwrap(), None);
        for text in ["", "--file a.rs", "a b", "a --skip", "a --timeout 0", "a --timeout x", "a --fast"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
