//! Standard output, whose reader may go away at any time (`drover ... | head`).

use std::io::{ErrorKind, Write};
use std::process::exit;

/// What a shell reports for a program that SIGPIPE ended.
const BROKEN_PIPE: i32 = 141;

/// Writes to standard output. Ends the program, without a word, when nobody reads any more.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => gone(),
        Err(error) => {
            eprintln!("error: standard output cannot be written: {error}");
            exit(crate::exit::Exit::Internal as i32);
        }
    }
}

/// Writes a line.
pub fn line(text: impl std::fmt::Display) {
    print(&format!("{text}\n"));
}

/// Ends the program, without a word, because nobody reads any more.
pub fn gone() -> ! {
    exit(BROKEN_PIPE)
}

/// Says something to a person, on standard error. What others named themselves drives no terminal.
pub fn say(text: impl std::fmt::Display) {
    eprintln!("{}", drover_view::plain(&text.to_string()));
}
