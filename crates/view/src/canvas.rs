//! Lines that stay and, below them, lines that move, on a terminal.

use std::io::{self, Write};

use crate::tally::Line;
use crate::text::clean;

/// A terminal and how many moving lines are on it. What is put on it drives it in no other way than this does.
#[derive(Debug)]
pub(crate) struct Canvas<W> {
    out: W,
    moving: usize,
    colour: bool,
}

const RED: &str = "\x1b[31m";
const NO_COLOUR: &str = "\x1b[0m";

impl<W: Write> Canvas<W> {
    pub(crate) fn new(out: W, colour: bool) -> Self {
        Canvas { out, moving: 0, colour }
    }

    /// Puts `staying` where the moving lines were, and `moving` below. Goes out in one write, so that
    /// nothing flickers.
    pub(crate) fn draw(&mut self, staying: &[Line], moving: &[String]) -> io::Result<()> {
        let mut text = String::new();
        if self.moving > 0 {
            text.push_str(&format!("\x1b[{}A\r", self.moving));
        }
        for line in staying {
            let words = clean(&line.text);
            match (line.bad, self.colour) {
                (true, true) => text.extend([RED, &words, NO_COLOUR]),
                _ => text.push_str(&words),
            }
            text.push_str("\x1b[K\n");
        }
        moving.iter().for_each(|line| text.extend([&clean(line), "\x1b[K\n"]));
        text.push_str("\x1b[J");
        self.moving = moving.len();
        self.put(&text)
    }

    /// Puts lines.
    pub(crate) fn log(&mut self, lines: &[Line]) -> io::Result<()> {
        self.put(&lines.iter().flat_map(|line| [clean(&line.text), "\n".into()]).collect::<String>())
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps what is written to it.
    #[derive(Clone, Default)]
    pub(crate) struct Paper(pub(crate) Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What a terminal shows after these bytes; knows just what [`Canvas`] uses.
    pub(crate) fn shown(bytes: &[u8]) -> Vec<String> {
        let text = std::str::from_utf8(bytes).unwrap();
        let (mut rows, mut row): (Vec<String>, usize) = (vec![String::new()], 0);
        let mut rest = text;
        let mut column = 0;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\n' => {
                    (row, column) = (row + 1, 0);
                    if rows.len() == row {
                        rows.push(String::new());
                    }
                }
                '\r' => column = 0,
                '\x1b' => {
                    let end = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                    match &rest[1..=end] {
                        "K" => rows[row] = rows[row].chars().take(column).collect(),
                        "J" => {
                            rows.truncate(row + 1);
                            rows[row] = rows[row].chars().take(column).collect();
                        }
                        up if up.ends_with('A') => row -= up.trim_end_matches('A').parse::<usize>().unwrap(),
                        colour => assert!(colour.ends_with('m'), "unknown sequence {colour}"),
                    }
                    rest = &rest[end + 1..];
                }
                c => {
                    rows[row] = rows[row]
                        .chars()
                        .take(column)
                        .chain([c])
                        .chain(rows[row].chars().skip(column + 1))
                        .collect();
                    column += 1;
                }
            }
        }
        rows.into_iter().filter(|row| !row.is_empty()).collect()
    }

    fn line(text: &str) -> Line {
        Line { text: text.into(), bad: text.contains("FAILED") }
    }

    #[test]
    fn lines_that_stay_stand_above_those_that_move() {
        let mut canvas = Canvas::new(Vec::new(), true);
        canvas.draw(&[line("begin")], &["a a long line".into(), "b".into()]).unwrap();
        canvas.draw(&[], &["a 2".into(), "b 2".into(), "c".into()]).unwrap();
        assert_eq!(shown(&canvas.out), ["begin", "a 2", "b 2", "c"]);
        canvas.draw(&[line("a FAILED"), line("b done")], &["c 2".into()]).unwrap();
        assert_eq!(shown(&canvas.out), ["begin", "a FAILED", "b done", "c 2"]);
        canvas.draw(&[line("end")], &[]).unwrap();
        assert_eq!(shown(&canvas.out), ["begin", "a FAILED", "b done", "end"]);
        assert!(String::from_utf8_lossy(&canvas.out).contains("\x1b[31ma FAILED\x1b[0m"));
    }
}
