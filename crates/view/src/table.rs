use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::text::{clean, shorten, width};

/// On which side a column is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings, each column as wide as its widest cell. A table that is [`Table::fitted`] shortens words where
/// it does not fit, those of the widest column first; numbers never are.
///
/// Widths are those on a terminal, where some characters take two columns and some none. Control
/// characters are replaced, so a cell is one line and nothing else.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    indent: usize,
    fits: Fits,
}

/// What a table does where it is too wide.
#[derive(Clone, Debug)]
enum Fits {
    /// Nothing.
    No,
    /// It shortens words.
    Shortened,
    /// It leaves out these columns, the first of them first, and shortens words where that is not enough.
    WithoutOn(&'static [&'static str]),
}

/// Between columns.
const GAP: &str = "  ";
/// Words are not made shorter than this.
const WORDS_MIN: usize = 8;
/// Columns are left out before words are made shorter than this.
const WORDS_GOOD: usize = 16;
/// Columns of the terminal; 0 where there is none.
static COLUMNS: AtomicUsize = AtomicUsize::new(0);
/// No table is made narrower: its numbers have to fit.
const COLUMNS_MIN: usize = 80;

/// Has tables take so many columns, 80 at least. Where there is no terminal nobody says this.
pub fn set_columns(columns: usize) {
    COLUMNS.store(columns.max(COLUMNS_MIN), Ordering::Relaxed);
}

fn terminal() -> Option<usize> {
    Some(COLUMNS.load(Ordering::Relaxed)).filter(|columns| *columns > 0)
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| (name.to_string(), *align)).collect();
        Table { columns, rows: Vec::new(), indent: 0, fits: Fits::No }
    }

    /// The same table, so many columns from the left.
    pub fn indented(mut self, columns: usize) -> Self {
        self.indent = columns;
        self
    }

    /// The same table, which fits the terminal or 80 columns. Not for reports, which are kept: their words stay whole.
    pub fn fitted(mut self) -> Self {
        self.fits = Fits::Shortened;
        self
    }

    /// The same table, which fits a terminal: where it is too wide, these columns are left out, the first of them first. Whole
    /// where there is no terminal.
    pub fn without_on_terminal(mut self, names: &'static [&'static str]) -> Self {
        self.fits = Fits::WithoutOn(names);
        self
    }

    /// Adds a row. Cells that are missing are empty; those beyond the columns are left out.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut row: Vec<String> =
            cells.into_iter().take(self.columns.len()).map(|cell| clean(&cell.into()).into_owned()).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Names of the columns that are left out.
    pub fn left_out(&self) -> Vec<&str> {
        let shown = self.shown(terminal());
        let names = self.columns.iter().enumerate().filter(|(at, _)| !shown.iter().any(|(it, _)| it == at));
        names.map(|(_, (name, _))| name.as_str()).collect()
    }

    /// The columns that are shown, by their places, and how wide they are.
    fn shown(&self, terminal: Option<usize>) -> Vec<(usize, usize)> {
        let widest = |(at, (name, _)): (usize, &(String, Align))| {
            (at, self.rows.iter().map(|row| width(&row[at])).max().unwrap_or(0).max(width(name)))
        };
        let mut shown: Vec<_> = self.columns.iter().enumerate().map(widest).collect();
        match (&self.fits, terminal) {
            (Fits::No, _) | (Fits::WithoutOn(_), None) => {}
            (Fits::Shortened, terminal) => self.shorten(&mut shown, terminal.unwrap_or(COLUMNS_MIN)),
            (Fits::WithoutOn(names), Some(columns)) => {
                for name in *names {
                    let good = |(at, wide): &(usize, usize)| match self.columns[*at].1 {
                        Align::Left => (*wide).min(WORDS_GOOD),
                        Align::Right => *wide,
                    };
                    if self.gaps(shown.len()) + shown.iter().map(good).sum::<usize>() <= columns {
                        break;
                    }
                    shown.retain(|(at, _)| self.columns[*at].0 != *name);
                }
                self.shorten(&mut shown, columns);
            }
        }
        shown
    }

    fn gaps(&self, shown: usize) -> usize {
        self.indent + GAP.len() * shown.saturating_sub(1)
    }

    /// Takes from the widest columns of words what is too much.
    fn shorten(&self, shown: &mut [(usize, usize)], columns: usize) {
        let all = self.gaps(shown.len()) + shown.iter().map(|(_, wide)| wide).sum::<usize>();
        for _ in columns..all {
            let of_words = |it: &&mut (usize, usize)| self.columns[it.0].1 == Align::Left && it.1 > WORDS_MIN;
            let Some(widest) = shown.iter_mut().filter(of_words).max_by_key(|it| it.1) else { break };
            widest.1 -= 1;
        }
    }

    fn line(&self, cell: impl Fn(usize) -> String, shown: &[(usize, usize)]) -> String {
        let mut line = " ".repeat(self.indent);
        for (place, (at, columns)) in shown.iter().enumerate() {
            let cell = cell(*at);
            let cell = shorten(&cell, *columns);
            let space = " ".repeat(columns.saturating_sub(width(&cell)));
            if place > 0 {
                line.push_str(GAP);
            }
            match self.columns[*at].1 {
                Align::Left => line.extend([&*cell, &space]),
                Align::Right => line.extend([&*space, &*cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.shown(terminal());
        writeln!(f, "{}", self.line(|at| self.columns[at].0.clone(), &shown))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", self.line(|at| row[at].clone(), &shown)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_even_for_wide_and_combining_characters() {
        let mut table = Table::new(&[("VM", Align::Left), ("SIZE", Align::Right)]).indented(2);
        table.row(["倉庫", "4 GiB"]);
        table.row(["e\u{301}té", "512 MiB"]);
        assert_eq!(table.to_string(), "  VM       SIZE\n  倉庫    4 GiB\n  e\u{301}té   512 MiB\n");
    }

    #[test]
    fn a_row_has_as_many_cells_as_there_are_columns() {
        let mut table = Table::new(&[("A", Align::Left), ("B", Align::Left)]);
        assert!(table.is_empty());
        table.row(["1"]);
        table.row(["1", "2", "3"]);
        assert_eq!(table.to_string(), "A  B\n1\n1  2\n");
    }

    #[test]
    fn words_are_shortened_where_a_table_does_not_fit_and_numbers_are_not() {
        let mut table =
            Table::new(&[("VM", Align::Left), ("SIZE", Align::Right), ("WHY", Align::Left)]).fitted();
        table.row(["倉庫".repeat(20).as_str(), "1,099,511,627,776 B", &"because ".repeat(10)]);
        let text = table.to_string();
        let widths: Vec<usize> = text.lines().map(width).collect();
        assert_eq!(text.lines().count(), 2);
        assert!(widths.iter().all(|columns| (70..=80).contains(columns) || *columns < 80), "{text}");
        assert!(text.contains("1,099,511,627,776 B") && text.matches("...").count() == 2, "{text}");
        assert!(text.contains("because because because"), "{text}");
        let numbers = [("N", Align::Right); 3];
        let mut wide = Table::new(&numbers).fitted();
        wide.row(["1".repeat(40), "2".repeat(40), "3".repeat(40)]);
        assert!(!wide.to_string().contains("..."), "what cannot be shortened stays whole");
    }

    #[test]
    fn columns_are_left_out_on_a_terminal_before_words_are_too_short() {
        let columns =
            [("VM", Align::Left), ("FOLDER", Align::Left), ("SIZE", Align::Right), ("HOST", Align::Left)];
        let mut table = Table::new(&columns).without_on_terminal(&["FOLDER", "HOST"]);
        table.row(["web".repeat(10), "f".repeat(30), "4 GiB".into(), "h".repeat(30)]);
        let shown = |terminal| table.shown(terminal).iter().map(|(at, _)| *at).collect::<Vec<_>>();
        assert_eq!(shown(None), [0, 1, 2, 3], "there is no terminal: nothing is missing");
        assert_eq!(table.shown(None)[1].1, 30);
        assert_eq!(shown(Some(110)), [0, 1, 2, 3]);
        assert_eq!(shown(Some(59)), [0, 1, 2, 3], "with words of 16 columns it fits");
        assert_eq!(shown(Some(58)), [0, 2, 3]);
        assert_eq!(shown(Some(40)), [0, 2]);
        let widths =
            |columns| table.shown(Some(columns)).iter().map(|(_, wide)| wide + GAP.len()).sum::<usize>();
        for columns in 25..120 {
            assert!(widths(columns) - GAP.len() <= columns, "{columns}");
        }
        assert!(table.left_out().is_empty());
    }

    #[test]
    fn a_cell_stays_one_line() {
        let mut table = Table::new(&[("A", Align::Left)]);
        table.row(["x\n\u{1b}[31my"]);
        assert_eq!(table.to_string(), "A\nx \u{fffd}[31my\n");
    }
}
