//! Calls that failed, in words that a model can act on: what failed, why, and what to do next.

use std::error::Error;
use std::fmt;

use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_client::{ClientError, Refusal};

use crate::ToolSet;

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    what: String,
    why: String,
    next: Option<String>,
    /// What a program had printed when it could no longer be followed.
    output: Option<String>,
}

impl Failure {
    pub fn new(what: impl Into<String>, why: impl Into<String>) -> Failure {
        Failure { what: what.into(), why: why.into(), next: None, output: None }
    }

    /// Says what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Failure {
        self.next = Some(next.into());
        self
    }

    /// What the daemon refused, or why it was not reached.
    pub(crate) fn of(what: impl Into<String>, error: &ClientError, tools: ToolSet) -> Failure {
        let next = next_step(error, tools);
        Failure { what: what.into(), why: with_causes(error), next, output: None }
    }

    /// With what a program had printed until it could no longer be followed.
    pub(crate) fn with_output(mut self, output: String) -> Failure {
        self.output = (!output.is_empty()).then_some(output);
        self
    }

    /// The same failure, of a call that left something behind which the caller should know of.
    pub(crate) fn after(mut self, what: &str) -> Failure {
        self.next = Some(match self.next {
            Some(next) => format!("{next}. {what}"),
            None => what.to_owned(),
        });
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { what, why, next, output } = self;
        write!(formatter, "{what}: {why}.")?;
        if let Some(next) = next {
            write!(formatter, "\nNext: {next}.")?;
        }
        match output {
            Some(output) => write!(formatter, "\nOutput until then:\n{output}"),
            None => Ok(()),
        }
    }
}

impl Error for Failure {}

fn with_causes(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}

fn next_step(error: &ClientError, tools: ToolSet) -> Option<String> {
    Some(match error {
        ClientError::Refused(refusal) => return of_refusal(refusal, tools),
        ClientError::Unreachable { .. } | ClientError::Foreign { .. } => {
            "ask the user whether the daemon runs: `forkd ping` tells, `forkd serve` starts one".into()
        }
        ClientError::Untrusted { .. } => {
            "ask the user to name a file with the daemon's certificate in SSL_CERT_FILE".into()
        }
        ClientError::Broken(_) | ClientError::CutOff | ClientError::TimedOut(_) => {
            "try again once; if it fails again, tell the user to look into the daemon's log".into()
        }
        ClientError::TooLarge(_) => "ask for less at once".into(),
        ClientError::Upload(_) => return None,
    })
}

fn of_refusal(refusal: &Refusal, tools: ToolSet) -> Option<String> {
    let own = refusal.hint_code.and_then(|code| in_words_of_tools(code, tools));
    own.or_else(|| of_code(refusal.code, tools)).or_else(|| refusal.hint.clone())
}

/// What the API's hint says with paths is said with tools here.
fn in_words_of_tools(code: HintCode, tools: ToolSet) -> Option<String> {
    let (sandboxes, snapshots, end, make) = match tools {
        ToolSet::Tasks => ("sandboxes", "snapshots", "end", "run"),
        ToolSet::Reference => ("list_sandboxes", "list_snapshots", "kill_sandbox", "spawn_sandboxes"),
    };
    Some(match code {
        HintCode::ListSandboxes => format!("call `{sandboxes}` to see the sandboxes that exist"),
        HintCode::ListSnapshots | HintCode::NameTemplate => {
            format!("call `{snapshots}` to see the snapshots that exist")
        }
        HintCode::ListSources => {
            format!("call `{snapshots}` and `{sandboxes}` to see what can be forked")
        }
        HintCode::ListBranches => {
            format!("call `{sandboxes}`: the `branches` of the sandbox are those it can go back to")
        }
        HintCode::LookAtEnd | HintCode::LookAtConsole => {
            format!("call `{sandboxes}` to see why it ended, and make a new one with `{make}`")
        }
        HintCode::ChooseTag => "choose another name".into(),
        HintCode::ResumeFirst => "ask the user to resume the sandbox: forkd resume SANDBOX".into(),
        HintCode::StartListening => "start the server in the sandbox first, and wait until it listens".into(),
        HintCode::ImageWithLanguage => {
            "use another language, or a snapshot of an image that has this one".into()
        }
        HintCode::RemoveSandboxes
        | HintCode::RaiseSandboxes
        | HintCode::RaiseTokenLimits
        | HintCode::RaiseProjectLimits
        | HintCode::FreeMemory => {
            format!(
                "end sandboxes that are no longer needed with `{end}`, or ask the user to raise the limit"
            )
        }
        HintCode::NeedsScope => "ask the user for a token with the scope that this needs".into(),
        HintCode::NeedsToken => "ask the user for a token: forkd token create NAME --scope run".into(),
        HintCode::AskForArchive => match tools {
            ToolSet::Tasks => "call `list_files` to see what is in a directory".into(),
            ToolSet::Reference => return None,
        },
        _ => return None,
    })
}

/// Where there is no hint, the code says enough for some.
fn of_code(code: Option<ErrorCode>, tools: ToolSet) -> Option<String> {
    match code? {
        ErrorCode::SandboxEnded => in_words_of_tools(HintCode::LookAtEnd, tools),
        ErrorCode::GuestTimeout => {
            Some("give it more time with `timeout_secs`, or run it in the background".into())
        }
        ErrorCode::FileNotFound | ErrorCode::NotDirectory if tools == ToolSet::Tasks => {
            Some("call `list_files` to see what exists".into())
        }
        ErrorCode::IsDirectory if tools == ToolSet::Tasks => {
            Some("call `list_files` to see what is in a directory".into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: ErrorCode, hint_code: Option<HintCode>, hint: Option<&str>) -> ClientError {
        let (error, hint) = ("it is not there".to_owned(), hint.map(str::to_owned));
        ClientError::Refused(Box::new(Refusal { status: 404, code: Some(code), error, hint, hint_code }))
    }

    #[test]
    fn a_failure_says_what_why_and_what_next() {
        let error = refused(ErrorCode::NotFound, Some(HintCode::ListSandboxes), Some("GET /v1/sandboxes"));
        let failure = Failure::of("Cannot run in sb-1", &error, ToolSet::Tasks);
        assert_eq!(
            failure.to_string(),
            "Cannot run in sb-1: it is not there.\nNext: call `sandboxes` to see the sandboxes that exist."
        );
        let reference = Failure::of("x", &error, ToolSet::Reference).to_string();
        assert!(reference.contains("`list_sandboxes`"), "{reference}");
    }

    #[test]
    fn hints_without_words_of_their_own_are_the_daemons() {
        let error = refused(ErrorCode::NoDisk, Some(HintCode::FreeDisk), Some("free some"));
        assert!(Failure::of("x", &error, ToolSet::Tasks).to_string().ends_with("Next: free some."));
        let bare = refused(ErrorCode::FileNotFound, None, None);
        assert!(Failure::of("x", &bare, ToolSet::Tasks).to_string().contains("`list_files`"));
        assert_eq!(Failure::of("x", &bare, ToolSet::Reference).to_string(), "x: it is not there.");
        let left = Failure::new("x", "y").after("Sandbox sb-1 was made for it").to_string();
        assert_eq!(left, "x: y.\nNext: Sandbox sb-1 was made for it.");
    }
}
