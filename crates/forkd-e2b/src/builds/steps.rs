//! What a template is built with, as clients send it, and as a Dockerfile says it.

use forkd_image::dockerfile::{Command, Copy, Dockerfile, Instruction, Line, Stage};
use forkd_image::recipe::Recipe;
use forkd_proto::agent::account::Account;
use forkd_proto::agent::startup::Probe;
use serde::Deserialize;

use forkd_daemon::error::Answer;
use forkd_daemon::operations::checks::malformed;

const MAX_STEPS: usize = 1000;

/// A build.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Start {
    pub from_image: Option<String>,
    pub from_template: Option<String>,
    pub from_image_registry: Option<serde_json::Value>,
    pub force: bool,
    pub steps: Vec<Step>,
    pub start_cmd: Option<String>,
    pub ready_cmd: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Step {
    #[serde(rename = "type")]
    pub kind: String,
    pub args: Vec<String>,
    pub files_hash: Option<String>,
    pub force: Option<bool>,
}

/// Whether a text is the hash that files are sent under. It is the name of a file.
pub(super) fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// As whom the first step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Begins {
    /// As E2B's user, in its home, whatever the image says.
    Anew,
    /// As this user, in the directory that the image names.
    With(String),
}

/// The steps on top of an image. Files that were sent are in directories of the context named by their hashes.
pub(super) fn dockerfile(from: &str, begins: &Begins, steps: &[Step]) -> Answer<Dockerfile> {
    if steps.len() > MAX_STEPS {
        return Err(malformed(format!("too many steps: expected at most {MAX_STEPS}")));
    }
    let mut instructions = Vec::new();
    let mut user = match begins {
        Begins::Anew => {
            let Account { name, home, .. } = Account::e2b();
            let first = [Instruction::User(quoted(&name)), Instruction::Workdir(quoted(&home))];
            instructions.extend(first.map(|instruction| Line { line: 0, instruction }));
            name
        }
        Begins::With(user) => user.clone(),
    };
    for (index, step) in steps.iter().enumerate() {
        let line = index + 1;
        let wrong = |what: &str| malformed(format!("step {line}: {what}"));
        let argument = |at: usize| step.args.get(at).filter(|text| !text.is_empty());
        if step.args.iter().any(|text| text.contains('\0')) {
            return Err(wrong("contains a NUL byte"));
        }
        // It becomes part of a path, whatever the step is.
        if step.files_hash.as_deref().is_some_and(|hash| !is_hash(hash)) {
            return Err(wrong("invalid filesHash: expected 64 hexadecimal digits"));
        }
        let mut push = |instruction| instructions.push(Line { line, instruction });
        match step.kind.to_ascii_uppercase().as_str() {
            "RUN" => {
                let command = argument(0).ok_or_else(|| wrong("RUN has no command"))?;
                match argument(1) {
                    // For this step only.
                    Some(other) => {
                        push(Instruction::User(quoted(other)));
                        push(Instruction::Run(Command::Shell(command.clone())));
                        push(Instruction::User(quoted(&user)));
                    }
                    None => push(Instruction::Run(Command::Shell(command.clone()))),
                }
            }
            "ENV" => {
                if step.args.is_empty() || !step.args.len().is_multiple_of(2) {
                    return Err(wrong("ENV needs pairs of names and values"));
                }
                for pair in step.args.chunks(2) {
                    let name = pair[0].as_str();
                    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
                    if name.is_empty() || !name.bytes().all(plain) {
                        return Err(wrong("ENV has an invalid name"));
                    }
                    push(Instruction::Env(format!("{name}={}", quoted(&pair[1]))));
                }
            }
            "WORKDIR" => {
                let path = argument(0).ok_or_else(|| wrong("WORKDIR has no path"))?;
                push(Instruction::Workdir(quoted(path)));
            }
            "USER" => {
                let name = argument(0).ok_or_else(|| wrong("USER has no name"))?;
                user.clone_from(name);
                push(Instruction::User(quoted(name)));
            }
            "COPY" => {
                let hash = step.files_hash.as_deref().filter(|hash| is_hash(hash));
                let hash = hash.ok_or_else(|| wrong("COPY has no files"))?;
                let (Some(source), Some(destination)) = (argument(0), argument(1)) else {
                    return Err(wrong("COPY needs a source and a destination"));
                };
                let source = source.trim_start_matches("./").trim_start_matches('/');
                push(Instruction::Copy(Copy {
                    unpacks: false,
                    from: None,
                    chown: Some(quoted(argument(2).unwrap_or(&user))),
                    chmod: argument(3).cloned(),
                    sources: vec![if source.is_empty() || source == "." {
                        format!("{hash}/.")
                    } else {
                        format!("{hash}/{source}")
                    }],
                    destination: destination.clone(),
                }));
            }
            other => {
                return Err(wrong(&format!(
                    "{} is not supported",
                    other.chars().take(20).collect::<String>()
                )));
            }
        }
    }
    let stage = Stage { line: 0, name: None, from: from.to_owned(), instructions };
    Ok(Dockerfile { arguments: Vec::new(), stages: vec![stage], escape: '\\' })
}

/// A text that means itself: what a Dockerfile would expand is not.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@%+,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for character in text.chars() {
        if ['"', '\\', '$'].contains(&character) {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted + "\""
}

/// A command line for a shell.
pub(super) fn shell(command: &str) -> Vec<String> {
    ["/bin/sh", "-c", command].map(str::to_owned).into()
}

/// When a template's server is ready. Clients wait for a port with `ss`, which many images do not have; the agent needs no
/// program to see who listens.
pub(super) fn probe(command: &str) -> Probe {
    let port = [("[ -n \"$(ss -Htuln sport = :", ")\" ]"), ("ss -tuln | grep :", "")]
        .into_iter()
        .find_map(|(before, behind)| command.trim().strip_prefix(before)?.strip_suffix(behind)?.parse().ok());
    match port {
        Some(port) if port > 0 => Probe::Port(port),
        _ => Probe::Command(shell(command)),
    }
}

/// What the guest of a template is booted with is not part of its image.
pub(super) fn no_recipe() -> Recipe {
    Recipe::default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(kind: &str, args: &[&str], hash: Option<&str>) -> Step {
        Step {
            kind: kind.into(),
            args: args.iter().map(ToString::to_string).collect(),
            files_hash: hash.map(str::to_owned),
            force: None,
        }
    }

    #[test]
    fn hashes_of_files_are_hashes_whatever_the_step_is() {
        for hash in ["", "../../../etc/passwd", "/etc/passwd", &"g".repeat(64)] {
            let error =
                dockerfile("debian", &Begins::Anew, &[step("RUN", &["true"], Some(hash))]).unwrap_err();
            assert_eq!(
                error.to_string(),
                "step 1: invalid filesHash: expected 64 hexadecimal digits",
                "{hash:?}"
            );
        }
    }

    #[test]
    fn steps_become_instructions() {
        let hash = "0".repeat(64);
        let steps = [
            step("RUN", &["echo \"$HOME\""], None),
            step("ENV", &["A", "x y$z", "B", "plain"], None),
            step("WORKDIR", &["/app"], None),
            step("USER", &["user"], None),
            step("RUN", &["id", "root"], None),
            step("COPY", &["./src", "/app/", "user", "0644"], Some(&hash)),
        ];
        let dockerfile = dockerfile("debian:bookworm", &Begins::With("app".into()), &steps).unwrap();
        let stage = &dockerfile.stages[0];
        assert_eq!(stage.from, "debian:bookworm");
        let is: Vec<&Instruction> = stage.instructions.iter().map(|line| &line.instruction).collect();
        assert_eq!(is[0], &Instruction::Run(Command::Shell("echo \"$HOME\"".into())));
        assert_eq!(is[1], &Instruction::Env("A=\"x y\\$z\"".into()));
        assert_eq!(is[2], &Instruction::Env("B=plain".into()));
        assert_eq!(is[3..5], [&Instruction::Workdir("/app".into()), &Instruction::User("user".into())]);
        let as_root = [
            Instruction::User("root".into()),
            Instruction::Run(Command::Shell("id".into())),
            Instruction::User("user".into()),
        ];
        assert_eq!(is[5..8], as_root.iter().collect::<Vec<_>>());
        let Instruction::Copy(copy) = is[8] else { panic!("{:?}", is[8]) };
        assert_eq!((&copy.sources[0], copy.destination.as_str()), (&format!("{hash}/src"), "/app/"));
        assert_eq!((copy.chown.as_deref(), copy.chmod.as_deref()), (Some("user"), Some("0644")));
    }

    #[test]
    fn steps_are_e2b_s_user_s_unless_they_say_otherwise() {
        let hash = "0".repeat(64);
        let steps = [
            step("RUN", &["id", "root"], None),
            step("COPY", &["a", "b"], Some(&hash)),
            step("USER", &["app"], None),
            step("COPY", &["a", "b"], Some(&hash)),
        ];
        let of = |begins: &Begins| -> Vec<Instruction> {
            let stage = dockerfile("x", begins, &steps).unwrap().stages.remove(0);
            stage.instructions.into_iter().map(|line| line.instruction).collect()
        };
        let user = |name: &str| Instruction::User(name.into());
        let anew = of(&Begins::Anew);
        assert_eq!(anew[..3], [user("user"), Instruction::Workdir("/home/user".into()), user("root")]);
        assert_eq!(anew[4], user("user"));
        let owners = |instructions: &[Instruction]| -> Vec<String> {
            let owner = |one: &Instruction| match one {
                Instruction::Copy(copy) => copy.chown.clone(),
                _ => None,
            };
            instructions.iter().filter_map(owner).collect()
        };
        assert_eq!(owners(&anew), ["user", "app"]);
        let on = of(&Begins::With("other".into()));
        assert_eq!((&on[0], &on[2]), (&user("root"), &user("other")));
        assert_eq!(owners(&on), ["other", "app"]);
    }

    #[test]
    fn a_port_is_waited_for_without_a_program_of_the_image() {
        for command in ["[ -n \"$(ss -Htuln sport = :8200)\" ]", "ss -tuln | grep :8200"] {
            assert_eq!(probe(command), Probe::Port(8200), "{command}");
        }
        for command in
            ["[ -f /ready ]", "ss -tuln | grep :0", "ss -tuln | grep :99999", "ss -tuln | grep :1; true"]
        {
            assert_eq!(probe(command), Probe::Command(shell(command)), "{command}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_step() {
        for wrong in [
            step("RUN", &[], None),
            step("RUN", &["a\0b"], None),
            step("ENV", &["A"], None),
            step("ENV", &["A B", "x"], None),
            step("COPY", &["a", "b"], None),
            step("COPY", &["a", "b"], Some("../x")),
            step("COPY", &["a"], Some(&"0".repeat(64))),
            step("VOLUME", &["x"], None),
            step("USER", &[""], None),
        ] {
            let error = dockerfile("x", &Begins::Anew, std::slice::from_ref(&wrong)).unwrap_err();
            assert!(error.to_string().starts_with("step 1: "), "{wrong:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_step_may_come(kind in "RUN|ENV|COPY|USER|WORKDIR|\\PC{0,8}", args in proptest::collection::vec("\\PC{0,16}", 0..5)) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let _ = dockerfile("x", &Begins::Anew, &[step(&kind, &args, Some(&"a".repeat(64)))]);
        }
    }
}
