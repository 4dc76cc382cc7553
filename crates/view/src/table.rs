use std::fmt;

use crate::text::{clean, width};

/// On which side a column is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under headings, each column as wide as its widest cell.
///
/// Widths are those on a terminal, where some characters take two columns and some none. Control
/// characters are replaced, so a cell is one line and nothing else.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    indent: usize,
}

/// Between columns.
const GAP: &str = "  ";

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| (name.to_string(), *align)).collect();
        Table { columns, rows: Vec::new(), indent: 0 }
    }

    /// The same table, so many columns from the left.
    pub fn indented(mut self, columns: usize) -> Self {
        self.indent = columns;
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
        self.columns.iter().enumerate().map(widest).collect()
    }

    fn line<'a>(&self, cells: impl Iterator<Item = &'a String>, widths: &[usize]) -> String {
        let mut line = " ".repeat(self.indent);
        for (at, (cell, columns)) in cells.zip(widths).enumerate() {
            let space = " ".repeat(columns.saturating_sub(width(cell)));
            if at > 0 {
                line.push_str(GAP);
            }
            match self.columns[at].1 {
                Align::Left => line.extend([cell.as_str(), &space]),
                Align::Right => line.extend([space.as_str(), cell]),
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
    fn a_cell_stays_one_line() {
        let mut table = Table::new(&[("A", Align::Left)]);
        table.row(["x\n\u{1b}[31my"]);
        assert_eq!(table.to_string(), "A\nx \u{fffd}[31my\n");
    }
}
