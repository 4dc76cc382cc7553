//! What ends the program before it has done what was asked.

use std::fmt;

use drover_console::Exit;

/// An error that says how the program ends and what to try.
#[derive(Debug)]
pub struct Failure {
    /// How to end.
    pub exit: Exit,
    message: String,
    advice: Option<String>,
}

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), advice: None }
    }

    /// Adds what to try.
    pub fn advise(self, advice: impl Into<String>) -> Failure {
        Failure { advice: Some(advice.into()), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        self.advice.as_ref().map_or(Ok(()), |advice| write!(f, "\n  try: {advice}"))
    }
}
