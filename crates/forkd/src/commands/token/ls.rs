//! `forkd token ls`.

use std::time::{Duration, UNIX_EPOCH};

use forkd_api::token::{Token, TokenLimits};

use super::tokens;
use crate::arguments::LsOptions;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &LsOptions) -> Result<Exit, CliError> {
    let tokens = tokens()?.list()?;
    if options.output.json {
        print_json(&tokens)?;
    } else {
        print(&render(&tokens))?;
    }
    Ok(Exit::Success)
}

fn render(tokens: &[Token]) -> String {
    let mut text = format!("{:<32} {:<6} {:<21} {:<21} LIMITS\n", "NAME", "SCOPE", "CREATED", "LAST USED");
    for token in tokens {
        let last = token.last_used_at_unix.map_or_else(|| "never".to_owned(), time);
        let created = time(token.created_at_unix);
        let limits = limits(&token.limits);
        text += &format!("{:<32} {:<6} {created:<21} {last:<21} {limits}\n", token.name, token.scope.name());
    }
    text
}

fn limits(limits: &TokenLimits) -> String {
    let sandboxes = limits.sandboxes.map(|count| format!("{count} sandboxes"));
    let memory = limits.memory_mib.map(|mib| format!("{mib} MiB"));
    let vcpus = limits.vcpus.map(|count| format!("{count} vCPUs"));
    let all: Vec<String> = [sandboxes, memory, vcpus].into_iter().flatten().collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn time(unix: u64) -> String {
    // The file says it, and what it says may be far beyond any calendar.
    let last = Duration::from_secs(253_402_300_799);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix).min(last)).to_string()
}

#[cfg(test)]
mod tests {
    use forkd_api::token::Scope;

    use super::*;

    #[test]
    fn a_line_a_token() {
        let token = |name: &str, last: Option<u64>| Token {
            name: name.into(),
            scope: Scope::Run,
            created_at_unix: 1_700_000_000,
            limits: TokenLimits { sandboxes: last.map(|_| 3), ..TokenLimits::default() },
            last_used_at_unix: last,
        };
        let text = render(&[token("ci", None), token("odd", Some(u64::MAX))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["ci", "run", "2023-11-14T22:13:20Z", "never", "none"]
        );
        assert!(lines[2].ends_with("9999-12-31T23:59:59Z  3 sandboxes"));
    }
}
