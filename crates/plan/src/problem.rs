use std::fmt;

use serde::{Deserialize, Serialize};

/// A place in the text of a plan file; both count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct At {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

/// How bad a [`Problem`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The plan cannot be carried out as it stands.
    Error,
    /// It can, but somebody should look.
    Warning,
}

/// Something wrong with a plan, in itself or against an inventory.
///
/// Printed as `12:9: error: vms[2].name: no VM is called 'wbe01' (did you mean 'web01'?)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Whether it stops the plan.
    pub severity: Severity,
    /// Line in the plan file, from 1; absent if no line is to blame.
    pub line: Option<u32>,
    /// Column in the plan file, from 1, in characters.
    pub column: Option<u32>,
    /// Where in the plan (`vms[2].glob`); empty for the plan as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// Ids of the VMs that it is about and that alone it stops; empty where it is of the whole plan.
    #[serde(skip)]
    pub vms: Vec<String>,
}

impl Problem {
    /// A problem that stops the plan.
    pub fn error(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, path.into(), message.into())
    }

    /// A problem that does not.
    pub fn warning(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, path.into(), message.into())
    }

    fn new(severity: Severity, path: String, message: String) -> Self {
        Problem { severity, line: None, column: None, path, message, advice: None, vms: Vec::new() }
    }

    /// The same problem, pointing at a place in the file.
    pub fn at(mut self, at: At) -> Self {
        self.line = Some(at.line);
        self.column = Some(at.column);
        self
    }

    /// The same problem with what to do about it.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The same problem, of these VMs alone, by their ids.
    pub fn of_vms<'a>(mut self, ids: impl IntoIterator<Item = &'a str>) -> Self {
        self.vms = ids.into_iter().map(str::to_string).collect();
        self
    }

    /// Whether it stops the plan.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}: ")?;
        }
        f.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match &self.advice {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}

/// Puts problems in the order of the file; those without a line come last.
pub(crate) fn sort(problems: &mut [Problem]) {
    problems.sort_by_key(|problem| (problem.line.unwrap_or(u32::MAX), problem.column, problem.severity));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_place_severity_path_message_and_advice() {
        let problem = Problem::error("vms[2].name", "no VM is called 'wbe01'")
            .at(At { line: 12, column: 9 })
            .advise("did you mean 'web01'?");
        assert_eq!(
            problem.to_string(),
            "12:9: error: vms[2].name: no VM is called 'wbe01' (did you mean 'web01'?)"
        );
        assert_eq!(Problem::warning("", "odd").to_string(), "warning: odd");
    }
}
