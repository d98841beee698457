//! Every command that README.md and the pages of docs show is run: those of a page in order, in one shell, against a daemon. Output
//! that a page shows is compared with what was printed.
//!
//! The guests are tiny, and the agent of all of them is a process of this host, so what one sandbox sets, all others see. Images exist
//! under the names of the documents. Commands that cannot be run like this are in a table (pages.rs), with the test that runs them.
//! Each page is run in namespaces of its own, where its ports are free and its daemon has networks.

mod pages;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forkd_image::images::ImageStore;
use forkd_image::kernels::KernelStore;
use forkd_net::plan::GUEST_MAC;
use forkd_proto::control::Net;
use forkd_tests::alone::{self, is_possible, make_uplink};
use forkd_tests::binaries;
use forkd_tests::docker_registry::DockerRegistry;
use forkd_tests::documents::{OUTPUT, Run, Script, Shown, differences, shown};
use forkd_tests::engine::process::Failure;
use forkd_tests::fake_agent::FakeAgents;
use forkd_tests::registry::{PASSWORD, Registry, USER};
use forkd_tests::tiny_library::fill;
use serde_json::{Value, json};

use crate::guest::Agent;
use crate::network;
use crate::world::World;
use pages::{BACKGROUND, EXCEPTIONS, Exception, OTHER_OUTPUT, PAGES, Page};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// The page that a process runs, and the directory that was prepared for it.
const PAGE: &str = "FORKD_TEST_PAGE";
const DIRECTORY: &str = "FORKD_TEST_DIRECTORY";
/// How long a page may take, in seconds.
const LIMIT: &str = "120";
/// The address that documents give the daemon.
const ADDRESS: &str = "127.0.0.1:8889";
/// The server that runs in guests, as the tutorial's image has it.
const SERVED: (u16, &str) = (8000, "hello from a fork\n");
/// Images of the documents, and the kernel that one of them shows.
const IMAGES: [&str; 6] = ["app", "debian", "hello", "numpy", "python-numpy", "python:3.12-slim"];
const KERNEL: &str = "6.1.0-40-amd64-1f2e3d4c5b6a";
/// What documents name, and what has its place here: variables of the shell.
const SUBSTITUTED: [(&str, &str); 6] = [
    ("/run/forkd/forkd.sock", "$FORKD_HOME/forkd.sock"),
    ("/var/log/forkd/audit.jsonl", "$AUDIT_LOG"),
    ("/var/lib/forkd", "$FORKD_HOME"),
    ("registry.example/team/app:v1", "$REGISTRY_IMAGE"),
    ("registry.example", "$REGISTRY"),
    ("SANDBOX", "\"$id\""),
];
/// As much of numpy as the documents use.
const NUMPY: &str = "class Array(list):
    def tolist(self):
        return list(self)
    def sum(self):
        return sum(self)
    def __mul__(self, factor):
        return Array(one * factor for one in self)
def zeros(count):
    return Array([0.0] * count)
def arange(count):
    return Array(range(count))
";

macro_rules! pages {
    ($($name:ident: $page:ident,)*) => {
        $(
            #[test]
            fn $name() -> Result<(), Failure> {
                run(&pages::$page)
            }
        )*
        const TESTED: &[&str] = &[$(pages::$page.path),*];
    };
}

pages! {
    commands_of_the_readme: README,
    commands_of_the_quickstart: QUICKSTART,
    commands_of_images: IMAGES,
    commands_of_snapshots: SNAPSHOTS,
    commands_of_networks: NETWORKS,
    commands_of_debug: DEBUG,
    commands_of_operations: OPERATIONS,
    commands_of_mcp: MCP,
    commands_of_e2b: E2B,
    commands_of_clients: CLIENTS,
    commands_of_forks: FORKS,
    commands_of_install: INSTALL,
    commands_of_upgrade: UPGRADE,
    commands_of_sdk_python: SDK_PYTHON,
    commands_of_sdk_typescript: SDK_TYPESCRIPT,
}

fn text(page: &str) -> Result<String, Failure> {
    Ok(fs::read_to_string(Path::new(ROOT).join(page)).map_err(|error| format!("{page}: {error}"))?)
}

impl Exception {
    fn applies(&self, page: &str, shown: &Shown) -> bool {
        (self.page.is_empty() || self.page == page) && shown.text.starts_with(self.begins)
    }
}

/// How a command of a page is run; `None` if it is not.
fn how(page: &str, shown: &Shown) -> Option<Run> {
    let exception = EXCEPTIONS.iter().find(|exception| exception.applies(page, shown));
    let mut command = match exception {
        Some(exception) => exception.instead?.to_owned(),
        None => shown.text.clone(),
    };
    for (named, here) in SUBSTITUTED {
        command = command.replace(named, here);
    }
    let background = BACKGROUND.iter().find(|(begins, _)| command.starts_with(begins));
    Some(match background {
        Some((_, prints)) => Run::Background { command, prints: *prints },
        None => Run::Foreground(command),
    })
}

/// What is shown and is not in the tables of pages.rs, and what is there and is not shown any more.
#[test]
fn every_command_is_run_or_left_to_another_test() -> Result<(), Failure> {
    let mut paths = vec!["README.md".to_owned()];
    for entry in fs::read_dir(Path::new(ROOT).join("docs"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            paths.push(format!("docs/{name}"));
        }
    }
    let (mut wrong, mut used, mut other, mut counts) =
        (Vec::new(), BTreeSet::new(), BTreeSet::new(), [0, 0, 0]);
    for path in &paths {
        let commands = shown(&text(path)?);
        if !commands.is_empty() && !TESTED.contains(&path.as_str()) {
            wrong.push(format!("{path} shows commands and has no test"));
        }
        for command in &commands {
            let exceptions = EXCEPTIONS.iter().enumerate().filter(|(_, it)| it.applies(path, command));
            used.extend(exceptions.map(|(number, _)| number));
            let outputs = OTHER_OUTPUT.iter().enumerate();
            let outputs =
                outputs.filter(|(_, (page, begins, _))| page == path && command.text.starts_with(begins));
            other.extend(outputs.map(|(number, _)| number));
            let excepted = EXCEPTIONS.iter().find(|it| it.applies(path, command));
            counts[match excepted {
                None => 0,
                Some(Exception { instead: Some(_), .. }) => 1,
                Some(_) => 2,
            }] += 1;
        }
    }
    for (number, Exception { page, begins, why, by, .. }) in EXCEPTIONS.iter().enumerate() {
        if !used.contains(&number) {
            wrong.push(format!("no page shows this exception: {page} {begins} ({why})"));
        }
        if !by.is_empty() && !Path::new(ROOT).join(by).exists() {
            wrong.push(format!("{by}, which should run {begins}, does not exist"));
        }
    }
    for (number, (page, begins, _)) in OTHER_OUTPUT.iter().enumerate() {
        if !other.contains(&number) {
            wrong.push(format!("{page} does not show the output of {begins}"));
        }
    }
    for page in PAGES {
        let sections: BTreeSet<String> = shown(&text(page.path)?).into_iter().map(|it| it.section).collect();
        for (section, _) in page.prepare.iter().filter(|(section, _)| !section.is_empty()) {
            if !sections.contains(*section) {
                wrong.push(format!("{} has no commands below {section}", page.path));
            }
        }
    }
    println!("{} commands are run, {} replaced, {} left to other tests", counts[0], counts[1], counts[2]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Runs the commands of a page, if there are any, where that is possible.
fn run(page: &Page) -> Result<(), Failure> {
    let commands = shown(&text(page.path)?);
    let to_run: Vec<_> = commands.iter().filter(|command| how(page.path, command).is_some()).collect();
    if to_run.is_empty() || !is_possible() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let path = programs(directory.path())?;
    let mut command = alone::contained(std::env::current_exe()?);
    command.env(PAGE, page.path).env(DIRECTORY, directory.path()).env("PATH", path);
    let output = command.args(["--ignored", "--exact", "--nocapture", "shown::in_namespaces"]).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}

/// Puts programs into a directory that this host may lack or that would change it. Returns the path on which they come first; guests
/// have the same.
fn programs(directory: &Path) -> Result<String, Failure> {
    let modules = directory.join("python");
    fs::create_dir_all(&modules)?;
    fs::write(modules.join("numpy.py"), NUMPY)?;
    fs::write(modules.join("pandas.py"), "")?;
    let path = std::env::var("PATH")?;
    let python = path.split(':').map(|place| Path::new(place).join("python3")).find(|path| path.is_file());
    let python = python.ok_or("no python3")?.display().to_string();
    let programs = directory.join("bin");
    for (name, command) in [
        ("python3", format!("PYTHONPATH={}:$PYTHONPATH exec {python} \"$@\"", modules.display())),
        ("pip", "exit 0".into()),
        ("apt-get", "exit 0".into()),
    ] {
        let file = programs.join(name);
        fs::create_dir_all(&programs)?;
        fs::write(&file, format!("#!/bin/sh\n{command}\n"))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    Ok(format!("{}:{}:{path}", programs.display(), binaries::directory().display()))
}

/// Where Python finds the client, what it needs, and numpy.
fn python_path(directory: &Path) -> Result<String, Failure> {
    let find = "import httpx, os; print(os.path.dirname(os.path.dirname(httpx.__file__)))";
    let tools = Path::new(ROOT).join("sdk/python/with-tools");
    let run = Command::new(tools).args(["python3", "-c", find]).stdin(Stdio::null()).output()?;
    assert!(run.status.success(), "{}", binaries::transcript(&run));
    let packages = String::from_utf8(run.stdout)?.trim().to_owned();
    Ok(format!("{ROOT}/sdk/python/src:{packages}:{}", directory.join("python").display()))
}

#[test]
#[ignore = "alone, by the tests above"]
fn in_namespaces() -> Result<(), Failure> {
    let Ok(name) = std::env::var(PAGE) else { return Ok(()) };
    let directory = PathBuf::from(std::env::var(DIRECTORY)?);
    let page = PAGES.into_iter().find(|page| page.path == name).ok_or("no such page")?;
    let text = text(page.path)?;
    let commands = shown(&text);

    let [work, home, output] = ["work", "home", "output"].map(|name| directory.join(name));
    for place in [&work, &home, &output] {
        fs::create_dir(place)?;
    }
    if let Some(file) = text.split("```toml\n").find(|block| block.starts_with("[snapshot.base]")) {
        fs::write(work.join("forkd.toml"), file.split("```").next().unwrap_or_default())?;
    }
    let audit_log = directory.join("audit.jsonl").display().to_string();
    let (world, _agents) = world(&audit_log)?;
    serve_port()?;
    let registry = match text.contains("registry.example") {
        true if text.contains("registry.example/team/app:v1") => {
            Some(Registry::start(&layer()?)?.address).map(|address| (address, None))
        }
        true => Some(DockerRegistry::start()?).map(|registry| (registry.address.clone(), Some(registry))),
        false => None,
    };
    let registry = registry.as_ref().map_or("", |(address, _)| address);

    let script = directory.join("script");
    fs::write(&script, script_of(page, &commands))?;
    let mut shell = Command::new("timeout");
    shell.args([LIMIT, "sh"]).arg(&script).current_dir(&work).stdin(Stdio::null());
    for variable in ["FORKD_URL", "FORKD_TOKEN", "FORKD_TOKEN_FILE", "FORKD_SOCKET", "FORKD_MACHINE"] {
        shell.env_remove(variable);
    }
    shell
        .env(OUTPUT, &output)
        .env("HOME", &home)
        .env("FORKD_HOME", world.home())
        .env("FORKD_ADDRESS", format!("unix://{}", world.socket().display()))
        .env("PYTHONPATH", python_path(&directory)?)
        .env("REGISTRY", registry)
        .env("REGISTRY_IMAGE", format!("{registry}/team/app:latest"))
        .env("REGISTRY_LOGIN", base64(&format!("{USER}:{PASSWORD}")))
        .env("AUDIT_LOG", &audit_log);
    let run = shell.output()?;
    let transcript = binaries::transcript(&run);
    assert!(run.status.success(), "{}: {transcript}\nthe daemon: {}", page.path, world.log());
    compare(page.path, &commands, &output)
}

fn base64(text: &str) -> String {
    use ::base64::Engine;
    ::base64::engine::general_purpose::STANDARD.encode(text)
}

/// A daemon with networks, at the documents' address, with the snapshot `warm` and images under the documents' names.
fn world(audit_log: &str) -> Result<(World, (FakeAgents, Agent)), Failure> {
    make_uplink()?;
    let options = [&network::OPTIONS[..], &["--listen", ADDRESS, "--audit-log", audit_log]].concat();
    World::with_real_agent(&options, |world, base| {
        let library = world.library();
        fill(&library)?;
        let images = ImageStore::new(&library);
        let image = images.find("empty")?;
        for name in IMAGES {
            images.name(&name.parse()?, image.id())?;
        }
        let kernel = library.join("kernels").join(KERNEL);
        fs::rename(library.join("kernels/tiny"), &kernel)?;
        let metadata = kernel.join("metadata.json");
        let mut described: Value = serde_json::from_slice(&fs::read(&metadata)?)?;
        described["id"] = json!(KERNEL);
        fs::write(&metadata, described.to_string())?;
        KernelStore::new(&library).set_default(KERNEL)?;
        base.tag = "warm".parse()?;
        base.shape.devices.net = Some(Net { mac: GUEST_MAC, mtu: None });
        Ok(())
    })
}

/// The layer of an image in a registry.
fn layer() -> Result<Vec<u8>, Failure> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(1);
    archive.append_data(&mut header, "file", &b"x"[..])?;
    Ok(archive.into_inner()?)
}

/// Answers each request to the port of the tutorial's server.
fn serve_port() -> Result<(), Failure> {
    let (port, served) = SERVED;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // A request is short, and comes at once.
            let _ = client.read(&mut [0; 4096]);
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", served.len());
            let _ = client.write_all((head + served).as_bytes());
        }
    });
    Ok(())
}

fn script_of(page: &Page, commands: &[Shown]) -> String {
    let mut script = Script::default();
    let mut section = None;
    for command in commands {
        let prepared = |wanted: &str| page.prepare.iter().find(|(section, _)| *section == wanted);
        if section.is_none()
            && let Some((_, commands)) = prepared("")
        {
            script.prepare(page.path, commands);
        }
        if section != Some(&command.section)
            && let Some((section, commands)) =
                prepared(&command.section).filter(|(section, _)| !section.is_empty())
        {
            script.prepare(&format!("before {section} of {}", page.path), commands);
        }
        section = Some(&command.section);
        if let Some(run) = how(page.path, command) {
            script.add(page.path, command, &run);
        }
    }
    script.finish()
}

/// Compares what commands have printed with what the page shows.
fn compare(page: &str, commands: &[Shown], output: &Path) -> Result<(), Failure> {
    let differs = |command: &Shown| {
        OTHER_OUTPUT.iter().any(|(other, begins, _)| *other == page && command.text.starts_with(begins))
    };
    let compared = commands.iter().filter(|command| match how(page, command) {
        None | Some(Run::Background { prints: false, .. }) => false,
        Some(_) => !differs(command),
    });
    let wrong = differences(page, compared, output)?;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
