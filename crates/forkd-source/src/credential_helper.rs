//! Programs that keep passwords, as Docker's config file names them: `docker-credential-NAME get`, the registry's address on standard
//! input, JSON on standard output.
//!
//! Only the command line runs them, as the user whose passwords they keep. The daemon is root, and does not.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::credentials::Credentials;

/// A helper may ask for a passphrase.
const PATIENCE: Duration = Duration::from_secs(60);
/// No credentials are larger; tokens have a few KiB.
const MAX_OUTPUT: u64 = 64 << 10;
const POLL: Duration = Duration::from_millis(10);
/// In the place of a user's name: the secret is an identity token.
const TOKEN: &str = "<token>";
/// What helpers say, all in the same words, of a registry that they have nothing for.
const NOT_FOUND: &str = "credentials not found";

#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("{0:?} is not a name of a credential helper: use letters, digits, '_' and '-'")]
    Name(String),
    #[error("cannot run docker-credential-{name}, which must be in PATH")]
    Run { name: String, source: io::Error },
    #[error("docker-credential-{name} has not answered within {} s", limit.as_secs())]
    Slow { name: String, limit: Duration },
    #[error("docker-credential-{name} has no credentials for {server}: {message}")]
    Failed { name: String, server: String, message: String },
    #[error("docker-credential-{name} printed invalid output: expected credentials in JSON, at most 64 KiB")]
    Output { name: String },
    #[error(
        "docker-credential-{name} has an identity token for {server}, which is not supported; log in with a password or an access token"
    )]
    IdentityToken { name: String, server: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks a helper. None if it has nothing for this registry.
pub(crate) fn ask(name: &str, server: &str) -> Result<Option<Credentials>, HelperError> {
    ask_within(PATIENCE, name, server, &Command::new)
}

fn ask_within(
    limit: Duration,
    name: &str,
    server: &str,
    program: &dyn Fn(String) -> Command,
) -> Result<Option<Credentials>, HelperError> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_name) {
        return Err(HelperError::Name(name.chars().take(80).collect()));
    }
    let failed = |source| HelperError::Run { name: name.into(), source };
    // Without a slash in it, it is looked for in PATH and nowhere else.
    let mut command = program(format!("docker-credential-{name}"));
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let ended = exchange(&mut child, server, limit);
    if !matches!(ended, Ok(Some(_))) {
        let _ = child.kill();
        let _ = child.wait();
    }
    let Some((success, output)) = ended.map_err(failed)? else {
        return Err(HelperError::Slow { name: name.into(), limit });
    };
    if !success {
        let message = String::from_utf8_lossy(&output);
        if message.to_lowercase().contains(NOT_FOUND) {
            return Ok(None);
        }
        let message = message.trim().chars().filter(|letter| !letter.is_control()).take(200).collect();
        return Err(HelperError::Failed { name: name.into(), server: server.into(), message });
    }
    parse(name, server, &output)
}

/// What a helper printed that has succeeded.
pub fn parse(name: &str, server: &str, output: &[u8]) -> Result<Option<Credentials>, HelperError> {
    let answer = (output.len() as u64 <= MAX_OUTPUT).then(|| serde_json::from_slice::<Answer>(output).ok());
    let Some(Answer { username, secret }) = answer.flatten() else {
        return Err(HelperError::Output { name: name.into() });
    };
    match (username.as_str(), secret.as_str()) {
        (TOKEN, _) => Err(HelperError::IdentityToken { name: name.into(), server: server.into() }),
        ("", "") => Ok(None),
        _ => Ok(Some(Credentials { username, password: secret })),
    }
}

/// Sends the address, and reads the answer: whether the helper succeeded and what it printed. None if it takes too long.
fn exchange(child: &mut Child, server: &str, limit: Duration) -> io::Result<Option<(bool, Vec<u8>)>> {
    let begun = Instant::now();
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    // One that does not read it says in its answer what is wrong. An address fits into a pipe.
    let _ = stdin.write_all(server.as_bytes());
    drop(stdin);
    let (sender, receiver) = mpsc::channel();
    // Not joined: a program that the helper has left behind may keep its output open.
    thread::spawn(move || {
        let mut output = Vec::new();
        let read = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut output);
        let _ = sender.send(read.map(|_| output));
    });
    let output = match receiver.recv_timeout(limit) {
        Ok(output) => output?,
        Err(_) => return Ok(None),
    };
    while begun.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some((status.success(), output)));
        }
        thread::sleep(POLL);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    /// Asks a helper that is this script.
    fn asked(script: &str) -> Result<Option<Credentials>, HelperError> {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("docker-credential-test_1"), script).unwrap();
        // Not run itself: a test beside this one that forks meanwhile would keep it open for writing.
        let program = |name: String| {
            let mut command = Command::new("/bin/sh");
            command.arg(directory.path().join(name)).stderr(Stdio::null());
            command
        };
        ask_within(Duration::from_secs(2), "test_1", "https://registry.example/v1/", &program)
    }

    #[test]
    fn a_helper_gets_the_address_and_says_who_somebody_is() {
        let script = r#"read server; test "$1" = get || exit 1
            echo "{\"ServerURL\": \"$server\", \"Username\": \"me\", \"Secret\": \"of $server\"}""#;
        let expected =
            Credentials { username: "me".into(), password: "of https://registry.example/v1/".into() };
        assert!(asked(script).unwrap() == Some(expected));
        // One that does not look at its input.
        let script = r#"echo '{"Username": "me", "Secret": "s"}'"#;
        assert!(asked(script).unwrap().is_some());
    }

    #[test]
    fn a_helper_that_has_nothing_is_not_an_error() {
        for script in [
            "echo credentials not found in native keychain; exit 1",
            r#"echo '{"ServerURL": "", "Username": "", "Secret": ""}'"#,
        ] {
            assert!(asked(script).unwrap().is_none(), "{script}");
        }
    }

    #[test]
    fn what_goes_wrong_is_named_and_bounded() {
        let error = |script: &str| asked(script).unwrap_err();
        let failed = error("printf 'the keychain \\033[31mis locked'; exit 3").to_string();
        assert!(failed.ends_with("registry.example/v1/: the keychain [31mis locked"), "{failed}");
        assert!(matches!(error("echo hello"), HelperError::Output { .. }));
        assert!(matches!(error("yes"), HelperError::Output { .. } | HelperError::Failed { .. }));
        let token = r#"echo '{"Username": "<token>", "Secret": "of-the-registry"}'"#;
        let token = error(token);
        assert!(matches!(token, HelperError::IdentityToken { .. }) && !token.to_string().contains("of-the"));
        let begun = Instant::now();
        assert!(matches!(error("exec sleep 20"), HelperError::Slow { .. }));
        // A program that it left behind keeps its output.
        assert!(matches!(error("sleep 20 & exit 0"), HelperError::Slow { .. }));
        assert!(begun.elapsed() < Duration::from_secs(15));
    }

    #[test]
    fn only_programs_in_path_are_run() {
        let long = "x".repeat(65);
        for name in ["", "../x", "a/b", "a b", "ä", "a.b", long.as_str()] {
            assert!(matches!(ask(name, "x"), Err(HelperError::Name(_))), "{name}");
        }
        assert!(matches!(ask("not-to-be-found", "x"), Err(HelperError::Run { .. })));
    }

    proptest! {
        #[test]
        fn any_output_has_credentials_has_none_or_is_refused(
            bytes in any::<Vec<u8>>(),
            username in "(<token>|.{0,10})",
            secret in "(|[!-~]{20,30})",
            spaces in 0_usize..70_000,
        ) {
            let _ = parse("test", "a.example", &bytes);
            let answer = serde_json::json!({"Username": username.as_str(), "Secret": secret.as_str(), "ServerURL": ""});
            let output = format!("{answer}{}", " ".repeat(spaces));
            match parse("test", "a.example", output.as_bytes()) {
                Ok(Some(found)) => prop_assert!(found.username == username && found.password == secret),
                Ok(None) => prop_assert!(username.is_empty() && secret.is_empty()),
                Err(error) => {
                    prop_assert!(username == TOKEN || output.len() as u64 > MAX_OUTPUT, "{}", error);
                    prop_assert!(secret.is_empty() || !error.to_string().contains(&secret));
                }
            }
        }

        #[test]
        fn a_helper_with_any_other_name_is_not_run(name in "[a-z/. ]{0,8}[^a-zA-Z0-9_-][a-z/.]{0,8}") {
            let run = |_: String| -> Command { panic!("it was run") };
            let asked = ask_within(PATIENCE, &name, "a.example", &run);
            prop_assert!(matches!(asked, Err(HelperError::Name(_))), "{}", name);
        }
    }
}
