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
    fits: bool,
}

/// Between columns.
const GAP: &str = "  ";
/// Words are not made shorter than this.
const WORDS_MIN: usize = 8;
/// Columns that a table may take.
static COLUMNS: AtomicUsize = AtomicUsize::new(80);
/// No table is made narrower: its numbers have to fit.
const COLUMNS_MIN: usize = 80;

/// Has tables take so many columns, 80 at least.
pub fn set_columns(columns: usize) {
    COLUMNS.store(columns.max(COLUMNS_MIN), Ordering::Relaxed);
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| (name.to_string(), *align)).collect();
        Table { columns, rows: Vec::new(), indent: 0, fits: false }
    }

    /// The same table, so many columns from the left.
    pub fn indented(mut self, columns: usize) -> Self {
        self.indent = columns;
        self
    }

    /// The same table, which fits the terminal or 80 columns. Not for reports, which are kept: their words stay whole.
    pub fn fitted(mut self) -> Self {
        self.fits = true;
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

    fn widths(&self) -> Vec<usize> {
        let widest = |(at, (name, _)): (usize, &(String, Align))| {
            self.rows.iter().map(|row| width(&row[at])).max().unwrap_or(0).max(width(name))
        };
        let widths = self.columns.iter().enumerate().map(widest).collect();
        if self.fits { self.fit(widths, COLUMNS.load(Ordering::Relaxed)) } else { widths }
    }

    /// Takes from the widest columns of words what is too much.
    fn fit(&self, mut widths: Vec<usize>, columns: usize) -> Vec<usize> {
        let gaps = self.indent + GAP.len() * widths.len().saturating_sub(1);
        let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
        while over > 0 {
            let of_words = |at: &usize| self.columns[*at].1 == Align::Left && widths[*at] > WORDS_MIN;
            let Some(widest) = (0..widths.len()).filter(of_words).max_by_key(|at| widths[*at]) else { break };
            widths[widest] -= 1;
            over -= 1;
        }
        widths
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a String>, widths: &[usize]) -> String {
        let mut line = " ".repeat(self.indent);
        for (at, (cell, columns)) in cells.zip(widths).enumerate() {
            let cell = shorten(cell, *columns);
            let space = " ".repeat(columns.saturating_sub(width(&cell)));
            if at > 0 {
                line.push_str(GAP);
            }
            match self.columns[at].1 {
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
        let widths = self.widths();
        writeln!(f, "{}", self.line(self.columns.iter().map(|(name, _)| name), &widths))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", self.line(row.iter(), &widths)))
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
    fn a_cell_stays_one_line() {
        let mut table = Table::new(&[("A", Align::Left)]);
        table.row(["x\n\u{1b}[31my"]);
        assert_eq!(table.to_string(), "A\nx \u{fffd}[31my\n");
    }
}
