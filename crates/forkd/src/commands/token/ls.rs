//! `forkd token ls`.

use std::time::{Duration, UNIX_EPOCH};

use forkd_api::token::Token;

use super::{limits, tokens};
use crate::arguments::LsOptions;
use crate::commands::print_value;
use crate::error::CliError;
use crate::exit::Exit;
use crate::table::{Side, Table};

pub fn run(options: &LsOptions) -> Result<Exit, CliError> {
    let tokens = tokens()?.list()?;
    print_value(&options.output, &tokens, || render(&tokens))?;
    Ok(Exit::Success)
}

fn render(tokens: &[Token]) -> String {
    let mut table = Table::new([
        ("NAME", Side::Left),
        ("SCOPE", Side::Left),
        ("PROJECT", Side::Left),
        ("CREATED", Side::Left),
        ("LAST USED", Side::Left),
        ("LIMITS", Side::Left),
    ]);
    for token in tokens {
        let last = token.last_used_at_unix.map_or_else(|| "never".to_owned(), time);
        table.row([
            token.name.clone(),
            token.scope.name().into(),
            token.project.clone(),
            time(token.created_at_unix),
            last,
            limits(&token.limits),
        ]);
    }
    table.render()
}

fn time(unix: u64) -> String {
    // The file says it, and what it says may be far beyond any calendar.
    let last = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix).min(last)).to_string()
}

#[cfg(test)]
mod tests {
    use forkd_api::token::{Scope, TokenLimits};

    use super::*;

    #[test]
    fn a_line_a_token() {
        let token = |name: &str, last: Option<u64>| Token {
            name: name.into(),
            scope: Scope::Run,
            project: "default".into(),
            created_at_unix: 1_700_000_000,
            limits: TokenLimits { sandboxes: last.map(|_| 3), ..TokenLimits::default() },
            last_used_at_unix: last,
        };
        let text = render(&[token("ci", None), token("odd", Some(u64::MAX))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["ci", "run", "default", "2023-11-14T22:13:20Z", "never", "none"]
        );
        assert!(lines[2].ends_with("9999-12-31T23:59:59Z  3 sandboxes"));
    }
}
