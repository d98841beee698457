//! A token's secret, which no log and no error shows.

use std::fmt;

/// What is sent as a bearer token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Nothing if it is not what a header can carry. White space around it is ignored: files end with a line's end.
    pub fn new(text: &str) -> Option<Secret> {
        let text = text.trim();
        let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Secret(text.to_owned()))
    }

    /// The text, for callers that show it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_word_and_is_not_shown() {
        let secret = Secret::new(" forkd_abc\n").unwrap();
        assert_eq!(secret.header(), "Bearer forkd_abc");
        assert_eq!(format!("{secret:?}"), "Secret");
        for wrong in ["", "\n", "a b", "a\nb", "\u{e9}"] {
            assert_eq!(Secret::new(wrong), None, "{wrong:?}");
        }
    }
}
