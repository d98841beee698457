//! What the engine fails with, as the caller sees it: the one place where its errors get codes and hints.

use axum::http::StatusCode;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_engine::agent::AgentError;
use forkd_engine::bring_up::BringUpError;
use forkd_engine::dial::DialError;
use forkd_engine::eval::EvalError;
use forkd_engine::exec::ExecError;
use forkd_engine::files::FileError;
use forkd_engine::library::LibraryError;
use forkd_engine::{CallError, CgroupError, CommandError, ProcessError};
use forkd_engine::{EngineError, Refusal, TravelError, Who};
use forkd_net::NetError;
use forkd_proto::control::RefusalCode;
use forkd_store::{RemoveError, WriteError};

use crate::error::{ApiError, chain};

/// What a guest says may be long.
const MAX_TEXT: usize = 2000;

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        ApiError::from(&error)
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> ApiError {
        use ErrorCode as Code;
        let text = error.to_string();
        match error {
            EngineError::NoSandbox(_) => ApiError::new(Code::NotFound, text).hint(HintCode::ListSandboxes),
            EngineError::NoSnapshot(_) => ApiError::new(Code::NotFound, text).hint(HintCode::ListSnapshots),
            EngineError::NoSource(_) => ApiError::new(Code::NotFound, text).hint(HintCode::ListSources),
            EngineError::Tag(_) => ApiError::new(Code::Malformed, text),
            EngineError::NameTaken(_) | EngineError::Write(WriteError::Exists { .. }) => {
                ApiError::new(Code::NameTaken, text).hint(HintCode::ChooseTag)
            }
            EngineError::Travel(
                TravelError::OldFormat { .. }
                | TravelError::Host { .. }
                | TravelError::Agent { .. }
                | TravelError::Memory { .. }
                | TravelError::Gone { .. },
            ) => ApiError::new(Code::WrongState, text),
            EngineError::Travel(TravelError::Fetch(_)) => ApiError::new(Code::UpstreamFailed, chain(error)),
            EngineError::Travel(_) | EngineError::Receive(_) => ApiError::new(Code::Malformed, chain(error)),
            EngineError::NameInUse { .. } => ApiError::new(Code::NameTaken, text).hint(HintCode::MoveName),
            EngineError::NoName { .. } => ApiError::new(Code::NotFound, text).hint(HintCode::ListNames),
            EngineError::TooManyNames { .. } => ApiError::new(Code::TooMany, text).hint(HintCode::ListNames),
            EngineError::HasNames { .. } => {
                ApiError::new(Code::HasDependents, text).hint(HintCode::RemoveNames)
            }
            EngineError::HasDependents { .. } | EngineError::Remove(RemoveError::Needed { .. }) => {
                ApiError::new(Code::HasDependents, text).hint(HintCode::RemoveDependents)
            }
            EngineError::IsParent { .. } => {
                ApiError::new(Code::HasDependents, text).hint(HintCode::CompactDependents)
            }
            EngineError::Damaged(_) => {
                ApiError::new(Code::WrongState, shortened(text)).hint(HintCode::VerifySnapshot)
            }
            EngineError::NotItsBranch { .. } => {
                ApiError::new(Code::WrongState, text).hint(HintCode::ListBranches)
            }
            EngineError::TooManyBranches(_) => {
                ApiError::new(Code::TooMany, text).hint(HintCode::RemoveBranches)
            }
            EngineError::TooManyLayers { .. } => {
                ApiError::new(Code::Unavailable, shortened(text)).hint(HintCode::MergeLayers)
            }
            EngineError::DiskLimit { .. } => ApiError::new(Code::Malformed, text).hint(HintCode::FitDisk),
            EngineError::NoNetwork(_) => ApiError::new(Code::Unavailable, text).hint(HintCode::NetworkOfHost),
            EngineError::NoNetworkDevice => {
                ApiError::new(Code::Malformed, text).hint(HintCode::NetworkOfSnapshot)
            }
            EngineError::Network(error @ NetError::Policy(_)) => {
                ApiError::new(Code::Malformed, error.to_string())
            }
            EngineError::Network(error @ NetError::Full(_)) => {
                ApiError::new(Code::TooMany, error.to_string()).hint(HintCode::RemoveSandboxes)
            }
            EngineError::Network(error) => ApiError::internal(error),
            EngineError::NoCgroups => ApiError::new(Code::Malformed, text).hint(HintCode::CgroupOfHost),
            EngineError::Cgroup(CgroupError::NoDevice { .. }) => {
                ApiError::new(Code::Malformed, text).hint(HintCode::DiskOfHost)
            }
            EngineError::WrongState(_) => ApiError::new(Code::WrongState, text),
            EngineError::EndedMeanwhile(_) => ApiError::new(Code::SandboxEnded, shortened(text)),
            EngineError::Failed { .. } => {
                ApiError::new(Code::WrongState, shortened(text)).hint(HintCode::MakeAgain)
            }
            EngineError::Refused(Refusal::Sandboxes { .. }) => {
                ApiError::new(Code::TooMany, text).hint(HintCode::RaiseSandboxes)
            }
            EngineError::Refused(Refusal::Owner { who: Who::Project, .. }) => {
                ApiError::new(Code::TooMany, text).hint(HintCode::RaiseProjectLimits)
            }
            EngineError::Refused(Refusal::Owner { .. }) => {
                ApiError::new(Code::TooMany, text).hint(HintCode::RaiseTokenLimits)
            }
            EngineError::Refused(Refusal::Memory { .. } | Refusal::Branch { .. }) => {
                ApiError::new(Code::NoMemory, text).hint(HintCode::FreeMemory)
            }
            EngineError::Refused(Refusal::Disk { .. } | Refusal::Room { .. }) => {
                ApiError::new(Code::NoDisk, text).hint(HintCode::FreeDisk)
            }
            EngineError::NoAgent { source, .. } => {
                let code = match source {
                    AgentError::Timeout(_) => Code::GuestTimeout,
                    _ => Code::GuestFailed,
                };
                ApiError::new(code, shortened(text)).detail(chain(source))
            }
            EngineError::Agent(error) | EngineError::BringUp(BringUpError::Agent(error)) => of_agent(error),
            EngineError::BringUp(error @ BringUpError::WarmUp { .. }) => {
                ApiError::new(Code::GuestFailed, shortened(error.to_string())).hint(HintCode::TryCode)
            }
            EngineError::BringUp(BringUpError::Command(error)) => of_command(error),
            EngineError::BringUp(BringUpError::Eval { source, .. }) => of_eval(source),
            EngineError::Call(error) => of_call(error),
            EngineError::Timeout => ApiError::new(Code::GuestTimeout, text).hint(HintCode::TryAgainOrRemove),
            EngineError::Removed => ApiError::new(Code::NotFound, text),
            EngineError::Stopping => ApiError::new(Code::Unavailable, text),
            EngineError::Image(error) => error.into(),
            EngineError::Library(error) => error.into(),
            EngineError::Process(ProcessError::Record(_)) => {
                ApiError::new(Code::Unavailable, text).hint(HintCode::ExamineHost)
            }
            EngineError::Cgroup(_)
            | EngineError::Answer(_)
            | EngineError::Ended(_)
            | EngineError::Process(_)
            | EngineError::Path(_)
            | EngineError::Io { .. }
            | EngineError::Store(_)
            | EngineError::Chain(_)
            | EngineError::Write(_)
            | EngineError::Remove(_)
            | EngineError::LayerKept(_)
            | EngineError::Merge(_)
            | EngineError::Background(_)
            | EngineError::Persist(_) => ApiError::internal(error),
        }
    }
}

impl From<&LibraryError> for ApiError {
    fn from(error: &LibraryError) -> ApiError {
        match error {
            LibraryError::Image(error) => error.into(),
            LibraryError::Kernel(error) => error.into(),
            LibraryError::Host(error) => {
                ApiError::new(ErrorCode::Unavailable, "no CA certificates found on the daemon's host")
                    .detail(chain(error))
            }
        }
    }
}

impl From<EvalError> for ApiError {
    fn from(error: EvalError) -> ApiError {
        of_eval(&error)
    }
}

impl From<ExecError> for ApiError {
    fn from(error: ExecError) -> ApiError {
        of_exec(&error)
    }
}

fn of_exec(error: &ExecError) -> ApiError {
    match error {
        ExecError::Agent(error) => of_agent(error),
        // No such program, directory or user: what the guest says of the request.
        ExecError::Refused(text) => ApiError::new(ErrorCode::Malformed, shortened(text.clone())),
        ExecError::NoProcess(text) => ApiError::new(ErrorCode::NotFound, shortened(text.clone())),
        ExecError::Silent(_) => ApiError::new(ErrorCode::GuestTimeout, error.to_string()),
        ExecError::Protocol(_) | ExecError::BrokenOff(_) => {
            ApiError::new(ErrorCode::GuestFailed, "invalid response from the guest")
                .hint(HintCode::TryAgain)
                .detail(chain(error))
        }
    }
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> ApiError {
        use ErrorCode as Code;
        let text = shortened(error.to_string());
        match error {
            FileError::Agent(error) => of_agent(&error),
            FileError::NotFound(_) => ApiError::new(Code::FileNotFound, text),
            FileError::IsDirectory(_) => ApiError::new(Code::IsDirectory, text).hint(HintCode::AskForArchive),
            FileError::NotDirectory(_) => ApiError::new(Code::NotDirectory, text),
            FileError::Denied(_) => ApiError::new(Code::PermissionDenied, text),
            FileError::NoSpace(_) => ApiError::new(Code::GuestDiskFull, text),
            FileError::TooMany(_) => ApiError::new(Code::TooMany, text),
            FileError::NoUser(_) | FileError::Refused(_) => ApiError::new(Code::Malformed, text),
            FileError::Range(_) => ApiError::new(Code::RangeNotSatisfiable, text),
        }
    }
}

impl From<DialError> for ApiError {
    fn from(error: DialError) -> ApiError {
        let text = shortened(error.to_string());
        match error {
            DialError::Closed(_) => ApiError::new(ErrorCode::PortClosed, text).hint(HintCode::StartListening),
            DialError::Timeout(_) => ApiError::new(ErrorCode::GuestTimeout, text),
            DialError::Failed { .. } => ApiError::new(ErrorCode::GuestFailed, text),
            DialError::Connect(_) | DialError::Io(_) => {
                ApiError::new(ErrorCode::GuestFailed, "invalid response from the guest")
                    .hint(HintCode::TryAgain)
                    .detail(chain(&error))
            }
        }
    }
}

/// An agent's own words go to the caller, whose guest it is.
fn of_agent(error: &AgentError) -> ApiError {
    match error {
        AgentError::Timeout(_) => {
            ApiError::new(ErrorCode::GuestTimeout, "the guest did not answer in time").detail(chain(error))
        }
        AgentError::NotReady(detail) => {
            ApiError::new(ErrorCode::GuestFailed, shortened(format!("the guest is not ready: {detail}")))
                .hint(HintCode::LookAtConsole)
        }
        AgentError::Status { .. } => ApiError::new(ErrorCode::GuestFailed, shortened(error.to_string())),
        AgentError::Connect(_)
        | AgentError::Http(_)
        | AgentError::Line(_)
        | AgentError::Request(_)
        | AgentError::Answer(_)
        | AgentError::Json(_) => ApiError::new(ErrorCode::GuestFailed, "invalid response from the guest")
            .hint(HintCode::TryAgain)
            .detail(chain(error)),
    }
}

/// A command that failed is at fault itself.
fn of_command(error: &CommandError) -> ApiError {
    match error {
        CommandError::Exec { source, .. } => of_exec(source),
        CommandError::Exited { .. } => ApiError::new(ErrorCode::BuildFailed, shortened(error.to_string())),
        CommandError::TimedOut { .. } => ApiError::new(ErrorCode::GuestTimeout, error.to_string()),
    }
}

fn of_eval(error: &EvalError) -> ApiError {
    match error {
        EvalError::Agent(error) => of_agent(error),
        EvalError::Timeout(_) => ApiError::new(ErrorCode::GuestTimeout, error.to_string()),
        EvalError::Refused { status, message } => {
            let refusal = |code| ApiError::new(code, shortened(message.clone()));
            match *status {
                StatusCode::BAD_REQUEST => refusal(ErrorCode::Malformed),
                StatusCode::NOT_FOUND => refusal(ErrorCode::NotFound),
                StatusCode::TOO_MANY_REQUESTS => refusal(ErrorCode::TooMany),
                StatusCode::NOT_IMPLEMENTED => {
                    refusal(ErrorCode::Malformed).hint(HintCode::ImageWithLanguage)
                }
                _ => ApiError::new(ErrorCode::GuestFailed, shortened(error.to_string())),
            }
        }
        EvalError::Protocol(_) => ApiError::new(ErrorCode::GuestFailed, "invalid response from the guest")
            .hint(HintCode::TryAgain)
            .detail(chain(error)),
    }
}

fn of_call(error: &CallError) -> ApiError {
    match error {
        CallError::Refused { refusal, .. } if refusal.code == RefusalCode::State => {
            ApiError::new(ErrorCode::WrongState, shortened(error.to_string()))
        }
        CallError::Gone => ApiError::new(ErrorCode::WrongState, "the sandbox ended while the request ran")
            .hint(HintCode::LookAtEnd),
        CallError::Timeout { .. } => ApiError::new(ErrorCode::GuestTimeout, error.to_string()),
        CallError::Refused { .. } | CallError::Socket(_) => ApiError::internal(error),
    }
}

pub(crate) fn shortened(text: String) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forkd_engine::record::Unreadable;
    use forkd_image::images::ImageError;
    use forkd_image::kernels::KernelStoreError;
    use forkd_proto::control::Refusal as Refused;

    use super::*;

    fn tag() -> forkd_store::Tag {
        "base".parse().unwrap()
    }

    #[test]
    fn each_error_has_its_code_and_those_that_can_be_helped_a_hint() {
        let refused = |code| {
            EngineError::Call(CallError::Refused {
                command: "pause",
                refusal: Refused { code, message: "no".into() },
            })
        };
        let warm_up = BringUpError::WarmUp { language: "python".into(), error: "x".into() };
        let eval = |source| BringUpError::Eval { language: "python".into(), source };
        let of_status = |status: u16| EvalError::Refused {
            status: StatusCode::from_u16(status).unwrap(),
            message: "Context x not found".into(),
        };
        let second = Duration::from_secs(1);
        let no_agent = EngineError::NoAgent { console: "panic".into(), source: AgentError::Timeout(second) };
        for (error, code, hint) in [
            (EngineError::NoSandbox("x".into()), ErrorCode::NotFound, true),
            (EngineError::NoSnapshot("x".into()), ErrorCode::NotFound, true),
            (EngineError::Tag("A B".parse::<forkd_store::Tag>().unwrap_err()), ErrorCode::Malformed, false),
            (EngineError::NameTaken(tag()), ErrorCode::NameTaken, true),
            (EngineError::HasDependents { tag: tag(), dependents: vec![] }, ErrorCode::HasDependents, true),
            (EngineError::NotItsBranch { tag: tag(), sandbox: "i".into() }, ErrorCode::WrongState, true),
            (EngineError::TooManyBranches(1), ErrorCode::TooMany, true),
            (EngineError::WrongState("ended"), ErrorCode::WrongState, false),
            (EngineError::EndedMeanwhile("x".into()), ErrorCode::SandboxEnded, false),
            (EngineError::NoNetwork("x".into()), ErrorCode::Unavailable, true),
            (EngineError::NoNetworkDevice, ErrorCode::Malformed, true),
            (NetError::Full(1).into(), ErrorCode::TooMany, true),
            (NetError::Ended.into(), ErrorCode::Internal, true),
            (EngineError::DiskLimit { wanted_mib: 2, most_mib: 1 }, ErrorCode::Malformed, true),
            (EngineError::Failed { tag: tag(), reason: "x".into() }, ErrorCode::WrongState, true),
            (Refusal::Sandboxes { wanted: 1, present: 1, most: 1 }.into(), ErrorCode::TooMany, true),
            (Refusal::Memory { wanted_mib: 1, available_mib: 0 }.into(), ErrorCode::NoMemory, true),
            (Refusal::Branch { wanted_mib: 1, available_mib: 0 }.into(), ErrorCode::NoMemory, true),
            (Refusal::Disk { free_mib: 0, kept_mib: 1 }.into(), ErrorCode::NoDisk, true),
            (Refusal::Room { wanted_mib: 1, free_mib: 0, kept_mib: 1 }.into(), ErrorCode::NoDisk, true),
            (AgentError::Timeout(second).into(), ErrorCode::GuestTimeout, false),
            (no_agent, ErrorCode::GuestTimeout, false),
            (AgentError::NotReady("x".into()).into(), ErrorCode::GuestFailed, true),
            (warm_up.into(), ErrorCode::GuestFailed, true),
            (eval(EvalError::Protocol("x".into())).into(), ErrorCode::GuestFailed, true),
            (eval(EvalError::Timeout(second)).into(), ErrorCode::GuestTimeout, false),
            (eval(of_status(400)).into(), ErrorCode::Malformed, false),
            (eval(of_status(404)).into(), ErrorCode::NotFound, false),
            (eval(of_status(429)).into(), ErrorCode::TooMany, false),
            (eval(of_status(501)).into(), ErrorCode::Malformed, true),
            (eval(of_status(500)).into(), ErrorCode::GuestFailed, false),
            (EngineError::NoCgroups, ErrorCode::Malformed, true),
            (BringUpError::Agent(AgentError::Timeout(second)).into(), ErrorCode::GuestTimeout, false),
            (refused(RefusalCode::State), ErrorCode::WrongState, false),
            (refused(RefusalCode::Failed), ErrorCode::Internal, true),
            (EngineError::Call(CallError::Gone), ErrorCode::WrongState, true),
            (EngineError::Removed, ErrorCode::NotFound, false),
            (EngineError::Stopping, ErrorCode::Unavailable, false),
            (ImageError::Unknown("x".into()).into(), ErrorCode::NotFound, true),
            (ImageError::Ambiguous("x".into()).into(), ErrorCode::Malformed, false),
            (ImageError::NeedsRoot.into(), ErrorCode::Unavailable, true),
            (EngineError::Timeout, ErrorCode::GuestTimeout, true),
            (
                EngineError::Call(CallError::Timeout { command: "pause", patience: second }),
                ErrorCode::GuestTimeout,
                false,
            ),
            (EngineError::TooManyLayers { layers: 100, reason: "x".into() }, ErrorCode::Unavailable, true),
            (ProcessError::from(Unreadable::new("/x", "y")).into(), ErrorCode::Unavailable, true),
        ] {
            let text = format!("{error:?}");
            let answer = ApiError::from(error);
            assert_eq!((answer.code(), answer.body().hint.is_some()), (code, hint), "{text}");
        }
        for (error, code) in [
            (ExecError::Refused("no such program".into()), ErrorCode::Malformed),
            (ExecError::Silent(second), ErrorCode::GuestTimeout),
            (ExecError::Protocol("x".into()), ErrorCode::GuestFailed),
            (ExecError::BrokenOff(None), ErrorCode::GuestFailed),
        ] {
            assert_eq!(ApiError::from(error).code(), code);
        }
        for (error, code) in [
            (FileError::NotFound("x".into()), ErrorCode::FileNotFound),
            (FileError::IsDirectory("x".into()), ErrorCode::IsDirectory),
            (FileError::NotDirectory("x".into()), ErrorCode::NotDirectory),
            (FileError::Denied("x".into()), ErrorCode::PermissionDenied),
            (FileError::NoSpace("x".into()), ErrorCode::GuestDiskFull),
            (FileError::NoUser("x".into()), ErrorCode::Malformed),
            (FileError::TooMany("x".into()), ErrorCode::TooMany),
            (FileError::Refused("x".into()), ErrorCode::Malformed),
            (FileError::Range(None), ErrorCode::RangeNotSatisfiable),
            (FileError::Agent(AgentError::Timeout(second)), ErrorCode::GuestTimeout),
        ] {
            assert_eq!(ApiError::from(error).code(), code);
        }
        for (error, code) in [
            (DialError::Closed(1), ErrorCode::PortClosed),
            (DialError::Timeout(1), ErrorCode::GuestTimeout),
            (DialError::Failed { port: 1, reason: "x".into() }, ErrorCode::GuestFailed),
            (DialError::Io(std::io::ErrorKind::UnexpectedEof.into()), ErrorCode::GuestFailed),
        ] {
            assert_eq!(ApiError::from(error).code(), code);
        }
        let unknown = ApiError::from(&LibraryError::Kernel(KernelStoreError::Unknown("x".into())));
        assert_eq!(unknown.code(), ErrorCode::NotFound);
        let ambiguous = ApiError::from(&LibraryError::Kernel(KernelStoreError::Ambiguous("x".into())));
        assert_eq!(ambiguous.code(), ErrorCode::Malformed);
    }

    #[test]
    fn a_guest_s_words_are_bounded() {
        let endless = ApiError::from(EngineError::from(AgentError::NotReady("é".repeat(1 << 20))));
        assert!(endless.body().error.chars().count() <= MAX_TEXT + 1);
    }
}
