//! Text that is checked when it is read: what such types have in common.

/// For a type of one `String` that has `FromStr`: it is read from, and written as, plain text.
///
/// With `#[serde(try_from = "String", into = "String")]`, what a file or a message says is checked, too.
#[macro_export]
macro_rules! checked_text {
    ($type:ident, $error:ident) => {
        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<$type, $error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(checked: $type) -> String {
                checked.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}
