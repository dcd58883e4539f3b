//! Tables for the terminal and for Markdown, from the same cells.

use std::fmt::Write as _;

/// A table of text; the first column is aligned left, the others right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
enum Row {
    Cells(Vec<String>),
    Rule,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(header: impl IntoIterator<Item = S>) -> Self {
        Table { header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(Row::Cells(cells.into_iter().map(Into::into).collect()));
    }

    /// A line across, in the terminal only.
    pub(crate) fn rule(&mut self) {
        self.rows.push(Row::Rule);
    }

    /// With lines of box-drawing characters.
    pub(crate) fn terminal(&self) -> String {
        let widths = self.widths();
        let rule = |left: &str, cross: &str, right: &str| {
            let lines: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
            format!("{left}{}{right}\n", lines.join(cross))
        };
        let mut out = rule("┌", "┬", "┐");
        let line = |cells: &[String], out: &mut String| {
            for (place, width) in widths.iter().enumerate() {
                let cell = cells.get(place).map_or("", String::as_str);
                let space = " ".repeat(width - width_of(cell));
                let _ = if place == 0 {
                    write!(out, "│ {cell}{space} ")
                } else {
                    write!(out, "│ {space}{cell} ")
                };
            }
            out.push_str("│\n");
        };
        line(&self.header, &mut out);
        out.push_str(&rule("├", "┼", "┤"));
        for row in &self.rows {
            match row {
                Row::Cells(cells) => line(cells, &mut out),
                Row::Rule => out.push_str(&rule("├", "┼", "┤")),
            }
        }
        out.push_str(&rule("└", "┴", "┘"));
        out
    }

    /// As a Markdown table.
    pub(crate) fn markdown(&self) -> String {
        let widths = self.widths();
        let mut out = String::new();
        let line = |cells: &[String], out: &mut String| {
            for (place, width) in widths.iter().enumerate() {
                let cell = cells.get(place).map_or("", String::as_str);
                let space = " ".repeat(width - width_of(cell));
                let _ = if place == 0 {
                    write!(out, "| {cell}{space} ")
                } else {
                    write!(out, "| {space}{cell} ")
                };
            }
            out.push_str("|\n");
        };
        line(&self.header, &mut out);
        for (place, width) in widths.iter().enumerate() {
            let dashes = "-".repeat(width + 1);
            let _ = if place == 0 { write!(out, "|{dashes}-") } else { write!(out, "|{dashes}:") };
        }
        out.push_str("|\n");
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                line(cells, &mut out);
            }
        }
        out
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.header.iter().map(|cell| width_of(cell)).collect();
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(width_of(cell));
            }
        }
        widths
    }
}

fn width_of(cell: &str) -> usize {
    cell.chars().count()
}

/// A number with commas between its thousands.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if number <= -0.5 { format!("-{out}") } else { out }
}

/// Milliseconds with about three significant digits.
pub(crate) fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 1.0 => format!("{ms:.3}"),
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms if ms < 100.0 => format!("{ms:.1}"),
        ms => thousands(ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_drawn_for_terminals_and_markdown() {
        let mut table = Table::new(["load", "x"]);
        table.row(["a", "1"]);
        table.rule();
        table.row(["bee µ", "1,000"]);
        let drawn = "┌───────┬───────┐\n│ load  │     x │\n├───────┼───────┤\n│ a     │     1 │\n\
                     ├───────┼───────┤\n│ bee µ │ 1,000 │\n└───────┴───────┘\n";
        assert_eq!(table.terminal(), drawn);
        assert_eq!(
            table.markdown(),
            "| load  |     x |\n|-------|------:|\n| a     |     1 |\n| bee µ | 1,000 |\n"
        );
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(thousands(1_234_567.4), "1,234,567");
        assert_eq!(thousands(-1_000.0), "-1,000");
        assert_eq!(thousands(12.0), "12");
        assert_eq!(
            [millis(0.0543), millis(2.345), millis(23.45), millis(1234.5)],
            ["0.054", "2.35", "23.4", "1,234"]
        );
    }
}
