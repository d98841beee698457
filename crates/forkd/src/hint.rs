//! What to do about what a daemon refuses, or about a daemon that does not answer, in words of the command line.

use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_client::{ClientError, Refusal};

/// What to do about it.
pub fn hint(error: &ClientError) -> Option<String> {
    Some(match error {
        ClientError::Unreachable { .. } => {
            "is it running? forkd serve starts one; --address or FORKD_ADDRESS names another".into()
        }
        ClientError::Untrusted { .. } => "SSL_CERT_FILE names a file of certificates to trust, in PEM".into(),
        ClientError::Refused(refusal) => return of_refusal(refusal),
        ClientError::Broken(_) | ClientError::CutOff => "the daemon's log may have the reason".into(),
        ClientError::TimedOut(_) => "forkd ping checks whether the daemon responds".into(),
        ClientError::Foreign { .. } => "--address or FORKD_ADDRESS names another".into(),
        ClientError::TooLarge(_) | ClientError::Upload(_) => return None,
    })
}

/// The daemon's own text, unless the command line has other words for what it means.
fn of_refusal(refusal: &Refusal) -> Option<String> {
    let own = match (refusal.hint_code, refusal.code) {
        (Some(code), _) => in_words_of_verbs(code),
        // Of a proxy before the daemon, or of an older daemon.
        (None, Some(ErrorCode::Unauthorized)) => in_words_of_verbs(HintCode::NeedsToken),
        (None, _) => None,
    };
    own.map(str::to_owned).or_else(|| refusal.hint.clone())
}

/// What the text of the API says with paths and parameters is said with verbs and options here.
fn in_words_of_verbs(code: HintCode) -> Option<&'static str> {
    Some(match code {
        HintCode::ListSandboxes => "see forkd ls --all",
        HintCode::ListSnapshots => "see forkd snapshot ls",
        HintCode::ListSources => "see forkd snapshot ls and forkd ls --all",
        HintCode::ListImages => "see forkd image ls",
        HintCode::ListKernels => "see forkd kernel ls",
        HintCode::ListBranches => "forkd inspect lists its branches",
        HintCode::RemoveDependents => "remove them first, or all with --cascade",
        HintCode::RemoveNames => "remove those names first (forkd snapshot rm NAME), or all with --all-names",
        HintCode::VerifySnapshot => "forkd snapshot verify names the damaged file",
        HintCode::MoveName => "choose another name, or move it with --force",
        HintCode::ConfirmPush => "push it with --yes if everyone who can pull it may see that memory",
        HintCode::ListNames => "forkd snapshot inspect shows its names",
        HintCode::ChooseKernel => "choose another first (forkd kernel default), or remove it with --force",
        HintCode::FitDisk => {
            "ask for less with --disk-limit, or make the snapshot with a larger disk (--disk)"
        }
        HintCode::NetworkOfHost => {
            "make the snapshot with --no-network, or let the daemon's host provide networks: forkd doctor says what is missing"
        }
        HintCode::NetworkOfSnapshot => {
            "omit the options that need a network, or make the snapshot without --no-network"
        }
        HintCode::LookAtConsole => "its console may say why: forkd logs",
        HintCode::LookAtEnd => "forkd inspect says why",
        HintCode::NeedsRoot => {
            "start a daemon as root (sudo forkd serve); or, without a daemon, run this command as root (sudo forkd ...)"
        }
        HintCode::NeedsToken => "FORKD_TOKEN or --token-file gives a token; forkd token create makes one",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: ErrorCode, hint_code: Option<HintCode>, text: Option<&str>) -> Option<String> {
        let (error, text) = ("no".to_owned(), text.map(str::to_owned));
        let refusal = Refusal { status: code.status(), code: Some(code), error, hint: text, hint_code };
        hint(&ClientError::Refused(Box::new(refusal)))
    }

    #[test]
    fn hints_are_in_words_of_verbs_where_there_are_some() {
        let list = refused(ErrorCode::NotFound, Some(HintCode::ListImages), Some("GET /v1/images"));
        assert_eq!(list.unwrap(), "see forkd image ls");
        let other = refused(ErrorCode::NoDisk, Some(HintCode::FreeDisk), Some("free some"));
        assert_eq!(other.unwrap(), "free some");
        assert_eq!(refused(ErrorCode::NoDisk, None, Some("of the future")).unwrap(), "of the future");
        assert_eq!(refused(ErrorCode::NoDisk, None, None), None);
        assert!(refused(ErrorCode::Unauthorized, None, None).unwrap().contains("FORKD_TOKEN"));
    }

    #[test]
    fn a_daemon_that_does_not_answer_has_hints_as_well() {
        assert!(hint(&ClientError::TimedOut(std::time::Duration::ZERO)).unwrap().contains("forkd ping"));
        assert_eq!(hint(&ClientError::TooLarge(1)), None);
    }
}
