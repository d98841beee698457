//! Tables on stdout: as wide as their content, readable without colour.

/// How a column's cells stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// Rows below their titles.
#[derive(Debug)]
pub struct Table {
    sides: Vec<Side>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(columns: [(&str, Side); N]) -> Table {
        let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        Table { sides: columns.iter().map(|(_, side)| *side).collect(), rows: vec![titles] }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| plain(cell)).collect());
    }

    pub fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.sides.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&self.sides).zip(&widths).map(|((cell, side), &width)| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            });
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
    }
}

/// Text that cannot move the terminal's cursor or change its colours: what comes from a guest or over the network may try.
pub fn plain(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let mut table = Table::new([("NAME", Side::Left), ("SIZE", Side::Right), ("WHAT", Side::Left)]);
        table.row(["a".into(), "1".into(), String::new()]);
        table.row(["longer".into(), "12345".into(), "x\u{1b}[2J".into()]);
        assert_eq!(table.render(), "NAME     SIZE  WHAT\na           1\nlonger  12345  x\u{fffd}[2J\n");
    }
}
