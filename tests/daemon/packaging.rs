//! The systemd unit: systemd understands it, it stays as tight as it is, and the daemon understands what it is started with. What is
//! installed, and that all of it is removed again. The manifest for Kubernetes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forkd_engine::UidRange;
use forkd_tests::engine::process::Failure;
use forkd_tests::{binaries, check};
use rustix::process::{Signal, getgid};
use serde_json::Value;
use tempfile::TempDir;

use crate::world::World;

const UNIT: &str = include_str!("../../packaging/forkd.service");
/// What `systemd-analyze security` may find, of 100. Lower is better: what the unit allows is what the daemon needs.
const MOST_EXPOSED: &str = "50";
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/forkd.yaml");
/// What packaging/install installs below its prefix, without the manual pages.
const INSTALLED: [&str; 10] = [
    "bin/forkd",
    "lib/forkd/forkd",
    "lib/forkd/forkd-agent",
    "lib/forkd/forkd-vmm",
    "lib/systemd/system/forkd.service",
    "lib/sysusers.d/forkd.conf",
    "share/bash-completion/completions/forkd",
    "share/doc/forkd/LICENSE",
    "share/fish/vendor_completions.d/forkd.fish",
    "share/zsh/site-functions/_forkd",
];

/// The unit, with the program that was built.
fn unit() -> Result<TempDir, Failure> {
    let directory = tempfile::tempdir()?;
    let program = binaries::directory().join("forkd");
    let text = UNIT.replace("/usr/bin/forkd", &program.display().to_string());
    fs::write(directory.path().join("forkd.service"), text)?;
    Ok(directory)
}

fn analyze(arguments: &[&str], unit: &Path) -> Result<String, Failure> {
    let run = Command::new("systemd-analyze").args(arguments).arg(unit).output();
    let run = run.map_err(|error| format!("systemd-analyze (scripts/setup installs it): {error}"))?;
    let transcript = binaries::transcript(&run);
    check!(run.status.success(), "{transcript}");
    Ok(transcript)
}

#[test]
fn systemd_understands_the_unit_and_finds_it_tight() -> Result<(), Failure> {
    let directory = unit()?;
    let unit = directory.path().join("forkd.service");
    let said = analyze(&["verify", "--man=no"], &unit)?;
    check!(!said.contains("forkd.service:"), "systemd warns: {said}");
    let threshold = format!("--threshold={MOST_EXPOSED}");
    analyze(&["security", "--offline=true", "--no-pager", &threshold], &unit)?;
    // Without these, a restart of the daemon would end every sandbox.
    for line in ["KillMode=process", "OOMPolicy=continue"] {
        check!(UNIT.lines().any(|is| is == line), "{line} is missing");
    }
    Ok(())
}

#[test]
fn the_daemon_understands_what_the_unit_starts_it_with() -> Result<(), Failure> {
    let start = UNIT.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/forkd serve "));
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let words = start.ok_or("no ExecStart")?.split_whitespace().map(|word| match word {
        "/run/forkd/forkd.sock" => at("forkd.sock"),
        "/var/log/forkd/audit.jsonl" => at("audit.jsonl"),
        // The group is one that the package makes.
        "forkd" => getgid().as_raw().to_string(),
        word => word.to_owned(),
    });
    let words: Vec<String> = words.collect();
    let mut world = World::new()?;
    world.end(Signal::TERM)?;
    world.launch(&words.iter().map(String::as_str).collect::<Vec<_>>(), &[])?;
    let socket = directory.path().join("forkd.sock");
    world.until("it answers where the unit says", |_| {
        Ok(crate::client::send(&socket, "GET /healthz", "", None).is_ok_and(|answer| answer.status == 200))
    })?;
    world.until("it keeps an audit log", |_| {
        Ok(fs::read_to_string(at("audit.jsonl"))?.contains("/healthz"))
    })?;
    world.end(Signal::TERM)
}

/// Runs a script of `packaging`, with these variables. Returns what it says on standard error.
fn package(script: &str, arguments: &[&str], variables: &[(&str, &Path)]) -> Result<String, Failure> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(script);
    let mut command = Command::new(script);
    for variable in ["ZSH", "STRIP", "SOURCE_DATE_EPOCH", "DESTDIR"] {
        command.env_remove(variable);
    }
    let run = command.args(arguments).envs(variables.iter().copied()).output()?;
    check!(run.status.success(), "{}", binaries::transcript(&run));
    Ok(String::from_utf8(run.stderr)?)
}

/// A directory with stand-ins for the three programs: the real ones take long to copy and to compress.
fn stand_ins(directory: &Path) -> Result<PathBuf, Failure> {
    let built = directory.join("built");
    fs::create_dir(&built)?;
    let script = "#!/bin/sh\nset -eu\ncase $1 in\nman) mkdir -p \"$2\"; echo page >\"$2/forkd.1\" ;;\n*) echo \"$*\" ;;\nesac\n";
    for name in ["forkd", "forkd-vmm", "forkd-agent"] {
        binaries::install_script(script, &built.join(name))?;
    }
    Ok(built)
}

/// The files below a directory, sorted.
fn files(root: &Path) -> Result<Vec<String>, Failure> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => directories.push(entry.path()),
                false => files.push(entry.path().strip_prefix(root)?.display().to_string()),
            }
        }
    }
    files.sort();
    Ok(files)
}

#[test]
fn what_is_installed_runs_and_is_removed_again() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let (built, prefix) = (binaries::directory(), Path::new("/opt/forkd"));
    let variables = [("BINARIES", built.as_path()), ("DESTDIR", directory.path()), ("PREFIX", prefix)];
    package("install", &[], &variables)?;
    let root = directory.path().join("opt/forkd");
    let (pages, others): (Vec<_>, Vec<_>) =
        files(&root)?.into_iter().partition(|path| path.starts_with("share/man/man1/forkd"));
    assert_eq!(others, INSTALLED);
    check!(pages.iter().any(|page| page.ends_with("/forkd-serve.1")), "{pages:?}");
    let unit = fs::read_to_string(root.join("lib/systemd/system/forkd.service"))?;
    check!(
        unit.contains("ExecStart=/opt/forkd/bin/forkd serve ") && !unit.contains("/usr/bin/forkd"),
        "{unit}"
    );

    // Started by its link, forkd finds the others beside itself: without forkd-vmm, the answer would have no `kvm`.
    let home = directory.path().join("home");
    let mut doctor = Command::new(root.join("bin/forkd"));
    doctor.args(["doctor", "--json"]).env("FORKD_HOME", &home).env("FORKD_SOCKET", home.join("none"));
    let doctor = doctor.stdin(Stdio::null()).output()?;
    let found: Value = serde_json::from_slice(&doctor.stdout)?;
    check!(found["kvm"].is_object(), "{}", binaries::transcript(&doctor));

    package("install", &["--uninstall"], &variables)?;
    assert_eq!(files(&root)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn an_installation_says_how_systemd_finds_the_unit() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let (built, prefix) = (stand_ins(directory.path())?, directory.path().join("prefix"));
    let variables = [("BINARIES", built.as_path()), ("PREFIX", prefix.as_path())];
    let said = package("install", &[], &variables)?;
    // systemd looks below /usr and /usr/local only.
    for file in ["lib/sysusers.d/forkd.conf", "lib/systemd/system/forkd.service"] {
        let path = prefix.join(file);
        check!(path.is_file() && said.contains(&format!(" {}", path.display())), "{said}");
    }
    package("install", &["--uninstall"], &variables)?;
    assert_eq!(files(&prefix)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn the_package_reserves_the_user_ids_of_vm_processes() -> Result<(), Failure> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian");
    let script = fs::read_to_string(scripts.join("postinst"))?;
    let number = |name: &str| -> Option<u32> {
        let lines = script.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.and_then(|number| number.parse().ok())
    };
    // The id before those of the daemon is that of guests of builds.
    let UidRange { first, count } = UidRange::default();
    assert_eq!((number("first"), number("count")), (Some(first - 1), Some(count + 1)));
    // And a purge removes that line.
    let (line, postrm) =
        (format!("^forkd:{}:{}$", first - 1, count + 1), fs::read_to_string(scripts.join("postrm"))?);
    check!(postrm.contains(&format!("'/{line}/d'")), "postrm does not remove {line}: {postrm}");
    Ok(())
}

#[test]
fn the_tarball_is_the_same_each_time() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let built = stand_ins(directory.path())?;
    let mut archives = Vec::new();
    for output in ["one", "two"] {
        let output = directory.path().join(output);
        let (no, epoch) = (Path::new("no"), Path::new("1700000000"));
        let variables = [
            ("BINARIES", built.as_path()),
            ("OUTPUT", output.as_path()),
            ("STRIP", no),
            ("SOURCE_DATE_EPOCH", epoch),
        ];
        package("tarball", &[], &variables)?;
        let name = concat!("forkd-", env!("CARGO_PKG_VERSION"), "-x86_64-linux.tar.gz");
        archives.push(fs::read(output.join(name))?);
        let sums = Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&output).output()?;
        check!(sums.status.success(), "{}", binaries::transcript(&sums));
        let mut unpack = Command::new("tar");
        unpack.args(["--strip-components=1", "-xzf", name]).current_dir(&output);
        check!(unpack.status()?.success() && output.join("bin/forkd").is_file(), "bin/forkd leads nowhere");
    }
    check!(archives[0] == archives[1], "two archives of the same files differ");
    Ok(())
}

/// `kubectl` without a cluster: it parses, and changes what it is given.
fn kubectl(arguments: &[&str], input: &str) -> Result<String, Failure> {
    let mut command = Command::new("kubectl");
    command.args(arguments).args(["--local", "--output", "json"]).env("KUBECONFIG", "/dev/null");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| format!("kubectl (scripts/setup installs it): {error}"))?;
    child.stdin.take().ok_or("no stdin")?.write_all(input.as_bytes())?;
    let run = child.wait_with_output()?;
    check!(run.status.success(), "{}", binaries::transcript(&run));
    Ok(String::from_utf8(run.stdout)?)
}

/// The objects of the manifest, as JSON.
fn objects() -> Result<Vec<Value>, Failure> {
    let text = kubectl(&["label", "--filename", MANIFEST, "forkd.dev/test=yes"], "")?;
    Ok(serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>()?)
}

fn object(kind: &str) -> Result<Value, Failure> {
    Ok(objects()?.into_iter().find(|object| object["kind"] == kind).ok_or(format!("no {kind}"))?)
}

/// The fields of one that the other has not, with another value or not at all.
fn missing(one: &Value, other: &Value, path: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let null = Value::Null;
            for (name, value) in one {
                missing(value, other.get(name).unwrap_or(&null), &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                missing(one, other, &format!("{path}[{index}]"), found);
            }
        }
        _ if one == other => {}
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn kubernetes_knows_every_field_of_the_manifest() -> Result<(), Failure> {
    // kubectl reads these two into the types of the API, which drops what they do not have.
    for (kind, change) in
        [("DaemonSet", ["set", "image", "*=changed"]), ("Service", ["set", "selector", "is=changed"])]
    {
        let given = object(kind)?;
        let [set, what, to] = change;
        let read = kubectl(&[set, what, "--filename", "-", to], &given.to_string())?;
        let mut found = Vec::new();
        missing(&given, &serde_json::from_str(&read)?, kind, &mut found);
        found.retain(|path| !path.ends_with(".image") && !path.contains(".spec.selector.app"));
        check!(found.is_empty(), "kubectl does not know {found:?}");
    }
    // The token is the administrator's to choose.
    check!(objects()?.iter().all(|object| object["kind"] != "Secret"), "the manifest has a Secret");
    Ok(())
}

#[test]
fn the_daemon_understands_what_kubernetes_starts_it_with() -> Result<(), Failure> {
    let pod = object("DaemonSet")?["spec"]["template"]["spec"].take();
    let (token, daemon) = (&pod["initContainers"][0], &pod["containers"][0]);
    let image = concat!("forkd:", env!("CARGO_PKG_VERSION"));
    assert_eq!((&token["image"], &daemon["image"]), (&image.into(), &image.into()));
    let mut world = World::new()?;
    let secret = world.home().join("secret");
    fs::write(&secret, "e2b_0123456789abcdef0123456789abcdef01234567\n")?;
    let words = |container: &Value| -> Result<Vec<String>, Failure> {
        let words = container["args"].as_array().ok_or("no arguments")?;
        let words = words.iter().map(|word| match word.as_str().unwrap_or_default() {
            "/etc/forkd/token" => secret.display().to_string(),
            "0.0.0.0:8889" => "127.0.0.1:0".to_owned(),
            // This host may have no networks to give.
            "required" => "none".to_owned(),
            word => word.to_owned(),
        });
        Ok(words.collect())
    };
    fn borrowed(words: &[String]) -> Vec<&str> {
        words.iter().map(String::as_str).collect()
    }
    // At each start of a pod.
    for _ in 0..2 {
        world.forkd(&borrowed(&words(token)?))?;
    }
    world.end(Signal::TERM)?;
    let words = words(daemon)?;
    let options = borrowed(&words);
    check!(options[0] == "serve", "{options:?}");
    world.start(&options[1..])?;
    // What the probes ask needs no token.
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let asked = format!("GET {}", daemon[probe]["httpGet"]["path"].as_str().ok_or("no path")?);
        let address: std::net::SocketAddr = world.address()?.parse()?;
        let answer = health(address, &asked)?;
        check!(answer.starts_with("HTTP/1.1 200 "), "{probe}: {answer}");
    }
    world.end(Signal::TERM)
}

fn health(address: std::net::SocketAddr, asked: &str) -> Result<String, Failure> {
    let mut connection = std::net::TcpStream::connect(address)?;
    write!(connection, "{asked} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    Ok(std::io::read_to_string(connection)?)
}
