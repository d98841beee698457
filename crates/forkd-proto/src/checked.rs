//! Values that are read from text and written as it: what their types have in common.

/// For a type that has `FromStr` and `Display`: with `#[serde(try_from = "String", into = "String")]`, what a file or a message says is
/// checked, too.
#[macro_export]
macro_rules! as_text {
    ($type:ident, $error:ident) => {
        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<$type, $error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

/// The same for a type of one `String` that has `FromStr`.
#[macro_export]
macro_rules! checked_text {
    ($type:ident, $error:ident) => {
        $crate::as_text!($type, $error);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}
