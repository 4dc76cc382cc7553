use std::fmt::Write;
use std::path::Path;

use drover_plan::{Problem, Severity};

use crate::text::clean;

/// Problems of a plan file as compilers write them, so that editors find the place:
/// `plan.yaml:12:5: error: vms[2].name: no VM is called 'wbe01'`, and below what to do.
pub fn problems_text(file: &Path, problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        // Writing to a string cannot fail.
        let _ = one(&mut text, file, problem);
    }
    text
}

fn one(text: &mut String, file: &Path, problem: &Problem) -> std::fmt::Result {
    write!(text, "{}:", clean(&file.display().to_string()))?;
    if let Some(line) = problem.line {
        write!(text, "{line}:{}:", problem.column.unwrap_or(1))?;
    }
    let severity = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    write!(text, " {severity}: ")?;
    if !problem.path.is_empty() {
        write!(text, "{}: ", clean(&problem.path))?;
    }
    writeln!(text, "{}", clean(&problem.message))?;
    match &problem.advice {
        Some(advice) => writeln!(text, "  try: {}", clean(advice)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use drover_plan::At;

    use super::*;

    #[test]
    fn problems_read_like_a_compilers() {
        let problems = [
            Problem::error("vms[2].name", "no VM is called 'wbe01'")
                .at(At { line: 12, column: 5 })
                .advise("did you mean 'web01'?"),
            Problem::warning("", "nothing is verified"),
        ];
        assert_eq!(
            problems_text(Path::new("plan.yaml"), &problems),
            "plan.yaml:12:5: error: vms[2].name: no VM is called 'wbe01'\n  try: did you mean 'web01'?\n\
             plan.yaml: warning: nothing is verified\n"
        );
        assert_eq!(problems_text(Path::new("plan.yaml"), &[]), "");
    }
}
