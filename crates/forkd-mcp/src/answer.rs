//! What a call is answered with, and how much of it.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

/// The most output in an answer. The rest is a resource.
pub(crate) const MAX_SHOWN: usize = 16 << 10;
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

/// The nearest place at or before this one where a character ends.
fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// A table, as Markdown has it.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: [String; N]| format!("| {} |\n", cells.map(|cell| cell_text(&cell)).join(" | "));
    let mut text = line(heads.map(str::to_owned)) + &line([(); N].map(|()| "---".to_owned()));
    for row in rows {
        text += &line(row);
    }
    text
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
    fn tables_keep_their_shape() {
        let text = table(["a", "b"], [["1|2".to_owned(), "x\ny".to_owned()]]);
        assert_eq!(text, "| a | b |\n| --- | --- |\n| 1\\|2 | x y |\n");
    }
}
