//! `forkd egress`.

use forkd_api::sandbox::{Egress, EgressMode};

use super::{print, print_json, with_daemon};
use crate::arguments::EgressOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &EgressOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let sandbox = match options.egress.wanted() {
            Some(egress) => client.set_egress(&options.sandbox, &egress).await?,
            None => client.sandbox(&options.sandbox).await?,
        };
        match (options.output.json, &sandbox.egress) {
            (true, egress) => print_json(egress)?,
            (false, Some(egress)) => print(&format!("{}\n", line(egress)))?,
            (false, None) => print("no network\n")?,
        }
        Ok(Exit::Success)
    })
}

/// In one line.
pub(super) fn line(egress: &Egress) -> String {
    match egress.mode {
        EgressMode::Allow if egress.deny.is_empty() => "allow".into(),
        EgressMode::Allow if egress.allow.is_empty() => format!("all but {}", egress.deny.join(", ")),
        EgressMode::Allow => {
            format!("all but {}, except {}", egress.deny.join(", "), egress.allow.join(", "))
        }
        EgressMode::Deny => "deny".into(),
        EgressMode::List => format!("only {}", egress.allow.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_one_line() {
        let list = |items: &[&str]| items.iter().map(ToString::to_string).collect();
        let egress =
            |mode, allow: &[&str], deny: &[&str]| Egress { mode, allow: list(allow), deny: list(deny) };
        for (egress, expected) in [
            (EgressMode::Allow.into(), "allow"),
            (EgressMode::Deny.into(), "deny"),
            (egress(EgressMode::List, &["a.example", "9.9.9.9"], &[]), "only a.example, 9.9.9.9"),
            (egress(EgressMode::Allow, &[], &["8.8.0.0/16", "9.9.9.9"]), "all but 8.8.0.0/16, 9.9.9.9"),
            (egress(EgressMode::Allow, &["8.8.8.8"], &["8.8.0.0/16"]), "all but 8.8.0.0/16, except 8.8.8.8"),
        ] {
            assert_eq!(line(&egress), expected);
        }
    }
}
