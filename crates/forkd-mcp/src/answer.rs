//! What a call is answered with, and how much of it.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

/// The most output in an answer. The rest is a resource.
pub(crate) const MAX_SHOWN: usize = 16 << 10;
/// The most that the rows of a list take. The rest says how many there are.
const MAX_ROWS: usize = MAX_SHOWN - 512;
/// The most of an answer's pictures together, in base64. Clients take no event of more than 1 MiB.
pub(crate) const MAX_PICTURES: usize = 768 << 10;

/// The result of a call.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub content: Vec<ContentBlock>,
    pub structured: Option<Value>,
}

impl Answer {
    pub(crate) fn text(text: impl Into<String>) -> Answer {
        Answer { content: vec![ContentBlock::text(text)], structured: None }
    }

    /// Text for people, and the same as data.
    pub(crate) fn with_data(text: impl Into<String>, data: &impl Serialize) -> Answer {
        // Types of this crate are maps with text keys: they can be written.
        let structured = serde_json::to_value(data).ok();
        Answer { structured, ..Answer::text(text) }
    }

    /// Data, and the same as text, for clients that know nothing else.
    pub(crate) fn data(data: &impl Serialize) -> Answer {
        let structured = serde_json::to_value(data).unwrap_or_default();
        Answer { content: vec![ContentBlock::text(structured.to_string())], structured: Some(structured) }
    }
}

impl From<Answer> for CallToolResult {
    fn from(answer: Answer) -> CallToolResult {
        let mut result = CallToolResult::success(answer.content);
        result.structured_content = answer.structured;
        result
    }
}

/// The beginning and the end of a text, at most this many bytes together, and how many bytes are between them; nothing if it fits.
/// The end says how a command ended, the beginning what went wrong first.
pub(crate) fn ends(text: &str, most: usize) -> Option<(&str, usize, &str)> {
    if text.len() <= most {
        return None;
    }
    let head = &text[..boundary(text, most / 2)];
    let tail = &text[boundary(text, text.len() - most / 2)..];
    Some((head, text.len() - head.len() - tail.len(), tail))
}

/// The most bytes of the line between the beginning and the end.
pub(crate) const MAX_LINE: usize = 64;

/// Stands for what is missing between the beginning and the end.
pub(crate) fn left_out_line(bytes: usize) -> String {
    format!("\n[... {bytes} bytes left out ...]\n")
}

/// The text, or its ends if it is longer than this. `lost` is what was left out of it before.
pub(crate) fn shortened(text: &str, most: usize, lost: usize) -> String {
    match ends(text, most) {
        Some((head, left_out, tail)) => format!("{head}{}{tail}", left_out_line(left_out + lost)),
        None => text.to_owned(),
    }
}

/// The nearest place at or before this one where a character ends.
fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// As many of the rows as fit into an answer, as text and as data; the others are dropped. The text is a table, as Markdown has it.
pub(crate) fn fitting_table<T: Serialize, const N: usize>(
    heads: [&str; N],
    rows: &mut Vec<T>,
    cells: impl Fn(&T) -> [String; N],
) -> String {
    let mut text = table(heads, []);
    let mut data = 0;
    let fitting = rows.iter().position(|row| {
        let line = line(cells(row));
        data += serde_json::to_string(row).map_or(0, |row| row.len()) + 1;
        let fits = text.len() + line.len() <= MAX_ROWS && data <= MAX_ROWS;
        if fits {
            text += &line;
        }
        !fits
    });
    rows.truncate(fitting.unwrap_or(rows.len()));
    text
}

/// A table, as Markdown has it.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut text = line(heads.map(str::to_owned)) + &line([(); N].map(|()| "---".to_owned()));
    for row in rows {
        text += &line(row);
    }
    text
}

fn line<const N: usize>(cells: [String; N]) -> String {
    format!("| {} |\n", cells.map(|cell| cell_text(&cell)).join(" | "))
}

/// A cell is one line, and has no bars of its own.
fn cell_text(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_in_the_middle_between_characters() {
        assert_eq!(ends("abc", 3), None);
        assert_eq!(ends("abcdef", 4), Some(("ab", 2, "ef")));
        // Each of these has two bytes.
        let (head, left_out, tail) = ends("ééééé", 6).unwrap();
        assert_eq!((head, tail), ("é", "éé"));
        assert_eq!(head.len() + left_out + tail.len(), 10);
    }

    #[test]
    fn what_is_left_out_is_counted_with_what_was_lost_before() {
        assert_eq!(shortened("abcdef", 4, 10), "ab\n[... 12 bytes left out ...]\nef");
        assert_eq!(shortened("abcd", 4, 0), "abcd");
    }

    #[test]
    fn lists_are_cut_to_what_fits_as_text_and_as_data() {
        let cut = |mut rows: Vec<String>, cells: fn(&String) -> [String; 1]| {
            let text = fitting_table(["a"], &mut rows, cells);
            assert!(text.len() <= MAX_ROWS && serde_json::to_string(&rows).unwrap().len() <= MAX_ROWS + 1);
            assert_eq!(text.lines().count(), 2 + rows.len());
            rows.len()
        };
        let whole = |row: &String| [row.clone()];
        assert_eq!(cut(vec!["x".repeat(50); 100], whole), 100);
        assert_eq!(cut(vec!["x".repeat(1000); 100], whole), 15);
        // More data than text, as with the control characters of a file's name.
        assert!(cut(vec!["\u{1}".repeat(1000); 100], |_| [String::new()]) < 3);
        assert_eq!(cut(vec!["x".repeat(MAX_SHOWN)], whole), 0);
    }

    #[test]
    fn tables_keep_their_shape() {
        let text = table(["a", "b"], [["1|2".to_owned(), "x\ny".to_owned()]]);
        assert_eq!(text, "| a | b |\n| --- | --- |\n| 1\\|2 | x y |\n");
    }
}
