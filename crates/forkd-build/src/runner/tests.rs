//! Builds with guests whose agents only note what they are asked for.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use forkd_engine::guest::Guest;
use forkd_image::Silent;
use forkd_image::dockerfile::{BuildOptions, Built, build, parse};
use forkd_image::images::BuiltImage;

use super::*;

const TRUST: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What happened in all guests, in order.
type Log = Arc<Mutex<Vec<String>>>;

struct FakeGuests(Log);

struct FakeGuest {
    agent: Agent,
    top: PathBuf,
    log: Log,
    _directory: tempfile::TempDir,
}

fn note(log: &Log, what: String) {
    log.lock().unwrap().push(what);
}

impl Guests for FakeGuests {
    fn start(&self, _: &Wait<'_>, disk: &DiskPlan) -> Result<Box<dyn RunningGuest>, GuestsError> {
        let layers: Vec<String> =
            disk.layers.iter().map(|layer| fs::read_to_string(layer).unwrap()).collect();
        note(&self.0, format!("boot [{}]", layers.join(" ")));
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vsock");
        let listener = UnixListener::bind(&socket).unwrap();
        let log = Arc::clone(&self.0);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                answer(client.unwrap(), &log);
            }
        });
        let agent = Agent::new(Guest::new(socket));
        let top = disk.top.clone().unwrap();
        Ok(Box::new(FakeGuest { agent, top, log: Arc::clone(&self.0), _directory: directory }))
    }
}

impl RunningGuest for FakeGuest {
    fn agent(&self) -> &Agent {
        &self.agent
    }

    fn finish(self: Box<Self>, _: &Wait<'_>) -> Result<(), GuestsError> {
        let number = self.log.lock().unwrap().iter().filter(|line| *line == "end").count();
        note(&self.log, "end".into());
        fs::write(&self.top, format!("layer{number}")).unwrap();
        Ok(())
    }
}

/// One request and its answer. Commands succeed, unless they are `false`; `sleep` never ends.
fn answer(client: UnixStream, log: &Log) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).map(|_| line.trim_end().to_owned()).unwrap()
    };
    assert_eq!(line(), "CONNECT 49983");
    (&client).write_all(b"OK 1\n").unwrap();
    let request = line();
    let mut length = None;
    loop {
        let header = line().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length: ") {
            length = value.parse().ok();
        }
    }
    let body = match length {
        Some(length) => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            body
        }
        None if request.starts_with("GET") => Vec::new(),
        None => chunks(&mut reader),
    };
    let words: Vec<&str> = request.split(' ').collect();
    let (status, answer) = respond(words[1], &body, log);
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", answer.len());
    // The requester may be gone.
    let _ = (&client).write_all(&[head.as_bytes(), &answer].concat());
}

fn chunks(reader: &mut impl BufRead) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        reader.read_line(&mut size).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

fn respond(path: &str, body: &[u8], log: &Log) -> (&'static str, Vec<u8>) {
    let envelope = |flags: u8, json: &str| {
        [&[flags][..], &u32::try_from(json.len()).unwrap().to_be_bytes(), json.as_bytes()].concat()
    };
    match path.split('?').next().unwrap() {
        "/init" => {
            let init: Value = serde_json::from_slice(body).unwrap();
            if init["timestamp"].is_null() {
                note(log, format!("as {}", init["defaultUser"].as_str().unwrap()));
            }
            ("204 No Content", Vec::new())
        }
        "/files" => ("200 OK", b"root:x:0:0::/:\nuser:x:1000:1000::/:\n".to_vec()),
        "/forkd/account" => {
            let request: AccountRequest = serde_json::from_slice(body).unwrap();
            note(log, format!("account {}", request.account.name));
            ("204 No Content", Vec::new())
        }
        "/forkd/grow" => {
            note(log, "grow".into());
            ("204 No Content", Vec::new())
        }
        "/forkd/pack" if String::from_utf8_lossy(body).contains(TRUST) => {
            let log = log.lock().unwrap();
            let content = log.iter().rev().find_map(|line| line.strip_prefix("trust ")).unwrap_or("own\n");
            ("200 OK", small::archive(&[TarEntry::File(TRUST, content.as_bytes())]).unwrap().to_vec())
        }
        "/forkd/pack" => {
            note(log, "pack".into());
            ("200 OK", small::archive(&[TarEntry::File("/packed", b"x")]).unwrap().to_vec())
        }
        "/forkd/place" if path.contains("owner=nobody") => {
            ("400 Bad Request", br#"{"code":400,"message":"there is no user 'nobody'"}"#.to_vec())
        }
        "/forkd/place" => {
            if let Some(content) = trusted(body) {
                note(log, format!("trust {content}"));
                return ("204 No Content", Vec::new());
            }
            let mut archive = tar::Archive::new(body);
            let names: Vec<String> = archive
                .entries()
                .unwrap()
                .map(|entry| entry.unwrap().path().unwrap().display().to_string())
                .collect();
            let query = path.split_once('?').unwrap().1.replace("into=/", "");
            note(log, format!("place {}{query}", names.join(" ")));
            ("204 No Content", Vec::new())
        }
        "/process.Process/Start" => {
            let request: Value = serde_json::from_slice(&body[5..]).unwrap();
            let process = &request["process"];
            note(log, format!("run {} in {}", process["args"][1].as_str().unwrap(), process["cwd"]));
            if process["args"][1] == "sleep" {
                std::thread::park();
            }
            let code = i32::from(process["args"][1] == "false") * 3;
            let end = format!(r#"{{"event":{{"end":{{"exitCode":{code},"status":"exit status {code}"}}}}}}"#);
            let data = envelope(0, r#"{"event":{"data":{"stdout":"c29tZSBvdXRwdXQK"}}}"#);
            ("200 OK", [data, envelope(0, &end), envelope(2, "{}")].concat())
        }
        path => panic!("{path}"),
    }
}

/// What is placed in the guest's file of certificates.
fn trusted(archive: &[u8]) -> Option<String> {
    let mut archive = tar::Archive::new(archive);
    let mut entry = archive.entries().unwrap().next()?.unwrap();
    let mut content = String::new();
    let is_it = entry.path().unwrap() == Path::new(TRUST.trim_start_matches('/'));
    is_it.then(|| entry.read_to_string(&mut content).map(|_| content).unwrap())
}

struct World {
    home: tempfile::TempDir,
    images: ImageStore,
    cache: BuildCache,
    log: Log,
    host: Option<HostEnvironment>,
    account: Option<Account>,
    disk_bytes: u64,
}

impl World {
    fn new() -> World {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("context")).unwrap();
        fs::write(home.path().join("context/a"), "a").unwrap();
        let images = ImageStore::new(home.path());
        let file = home.path().join("disk");
        fs::write(&file, vec![1; 8192]).unwrap();
        let built = BuiltImage {
            key: Digest::of(b"base"),
            config: Config::default(),
            recipe: None,
            default_user: "root".into(),
            name: Some("base".parse().unwrap()),
        };
        images.adopt(&file, built).unwrap();
        let cache = BuildCache::new(home.path());
        World { images, cache, log: Log::default(), home, host: None, account: None, disk_bytes: 0 }
    }

    fn build(&self, text: &str, uses_cache: bool) -> Result<Built<Disk>, String> {
        self.build_with(text, uses_cache, &Silent)
    }

    fn build_with(
        &self,
        text: &str,
        uses_cache: bool,
        progress: &dyn Progress,
    ) -> Result<Built<Disk>, String> {
        self.log.lock().unwrap().clear();
        let find = |_: &dyn Progress| -> Result<Box<dyn Guests>, GuestsError> {
            Ok(Box::new(FakeGuests(Arc::clone(&self.log))))
        };
        let (host, disk) = (self.host.clone(), self.disk_bytes);
        let mut runner =
            GuestRunner::new(&self.images, &self.cache, &find, uses_cache, host, disk, progress).unwrap();
        runner.account = self.account.clone();
        let context = Context::open(&self.home.path().join("context")).unwrap();
        let options = BuildOptions { owns_workdir: self.account.is_some(), ..BuildOptions::default() };
        let built = build(&parse(text).unwrap(), &context, &options, &mut runner, progress);
        built.map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            format!("{error}: {cause}")
        })
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn left(&self) -> usize {
        let names = fs::read_dir(self.home.path().join("builds")).unwrap();
        names
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".tmp-"))
            .count()
    }
}

const TEXT: &str =
    "FROM base\nWORKDIR /w\nCOPY --chown=app --chmod=750 a b\nRUN one\nUSER app:team\nRUN two\nCOPY a c\n";

#[test]
fn files_share_the_guest_of_the_command_that_follows() {
    let world = World::new();
    let built = world.build(TEXT, true).unwrap();
    let expected = [
        "boot []",
        "place w",
        "place w/b&owner=app&mode=750",
        "place w",
        "run one in \"/w\"",
        "end",
        "boot [layer0]",
        "place w",
        "as app:team",
        "run two in \"/w\"",
        "end",
        "boot [layer0 layer1]",
        "place w/c",
        "end",
    ];
    assert_eq!(world.log(), expected);
    assert_eq!((built.disk.layers(&world.cache).len(), &built.disk.default_user()[..]), (3, "user"));
    assert_eq!(world.left(), 0);
    // Again: nothing. After a change at the end: only that.
    world.build(TEXT, true).unwrap();
    assert_eq!(world.log(), [""; 0]);
    world.build(&TEXT.replace("a c", "a d"), true).unwrap();
    assert_eq!(world.log(), ["boot [layer0 layer1]", "place w/d", "end"]);
    // All of it, where that is asked for; and then the new ones are used.
    world.build(TEXT, false).unwrap();
    assert_eq!(world.log().len(), expected.len());
    let again = world.build(TEXT, true).unwrap();
    assert_eq!((world.log().len(), again.key), (0, built.key));
}

#[test]
fn a_user_that_is_asked_for_is_in_every_guest_and_owns_its_directories() {
    let mut world = World::new();
    let text = "FROM base\nUSER user\nWORKDIR /w\nRUN one\n";
    let plain = world.build(text, true).unwrap().key;
    assert_eq!(world.log()[..2], ["boot []", "place w"]);
    world.account = Some(Account::e2b());
    let with = world.build(text, true).unwrap().key;
    let expected =
        ["boot []", "account user", "place w&owner=user", "place w", "as user", "run one in \"/w\"", "end"];
    assert_eq!(world.log(), expected);
    // Neither is taken for the other.
    assert_ne!(plain, with);
    world.build(text, true).unwrap();
    assert_eq!(world.log(), [""; 0]);
    world.build(&text.replace("USER user", "USER other"), true).unwrap();
    assert!(world.log().contains(&"place w&owner=other".to_owned()), "{:?}", world.log());
}

#[test]
fn a_failure_is_named_and_what_was_done_before_is_kept() {
    let world = World::new();
    let text = "FROM base\nRUN one\nCOPY a b\nRUN false\n";
    let error = world.build(text, true).err().unwrap();
    assert!(
        error.starts_with("line 4: the command ended with exit status 3; its last output:\nsome output\n"),
        "{error}"
    );
    assert_eq!(world.left(), 0);
    world.build(&text.replace("false", "true"), true).unwrap();
    assert_eq!(world.log()[0], "boot [layer0]");
    let error = world.build("FROM base\nCOPY --chown=nobody a b\n", true).err().unwrap();
    assert_eq!(error, "line 2: cannot copy files into the guest: there is no user 'nobody'");
    assert_eq!(world.left(), 0);
}

#[test]
fn stages_begin_with_and_copy_from_each_other() {
    let world = World::new();
    let text =
        "FROM base AS one\nCOPY a b\nFROM one AS two\nRUN two\nFROM base\nCOPY --from=two --chown=5 /x /y\n";
    world.build(text, true).unwrap();
    let expected = [
        "boot []",
        "place b",
        "end",
        "boot [layer0]",
        "place .",
        "run two in \"/\"",
        "end",
        // The source, then the disk that it goes to.
        "boot [layer0 layer1]",
        "boot []",
        "pack",
        "place packed&owner=5",
        "end",
    ];
    assert_eq!(world.log(), expected);
    world.build(text, true).unwrap();
    assert_eq!(world.log(), [""; 0]);
}

/// The build is cancelled once a command that never ends has begun.
struct Impatient(Log);

impl Progress for Impatient {
    fn step(&self, _: &str) {}
    fn detail(&self, _: &str) {}
    fn warn(&self, _: &str) {}
    fn is_cancelled(&self) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.starts_with("run sleep"))
    }
}

#[test]
fn what_nobody_wants_any_more_ends_and_leaves_what_was_done_before() {
    let world = World::new();
    let impatient = Impatient(Arc::clone(&world.log));
    let error = world.build_with("FROM base\nRUN one\nRUN sleep\n", true, &impatient).err().unwrap();
    assert_eq!(error, "line 3: interrupted");
    assert_eq!(world.left(), 0);
    world.build("FROM base\nRUN one\nRUN two\n", true).unwrap();
    assert_eq!(world.log()[0], "boot [layer0]");
}

#[test]
fn the_host_s_certificates_are_there_for_the_command_only() {
    let mut world = World::new();
    let proxies = [("http_proxy".to_owned(), "http://p".to_owned())].into();
    world.host = Some(HostEnvironment { certificates: b"pem".to_vec(), proxies });
    world.build("FROM base\nRUN one\n", true).unwrap();
    let log = world.log();
    let expected = [
        "boot []",
        "place run/forkd/ca-certificates.crt run/forkd/apt.conf",
        "trust own\n\n# forkd: certificates of the host\npem\n",
        "place .",
        "run one in \"/\"",
        "trust own\n",
        "end",
    ];
    assert_eq!(log, expected);
    // No part of a key.
    world.host = None;
    world.build("FROM base\nRUN one\n", true).unwrap();
    assert_eq!(world.log(), [""; 0]);
}

#[test]
fn a_larger_disk_is_grown_into_and_has_keys_of_its_own() {
    let mut world = World::new();
    let text = "FROM base\nRUN one\nRUN two\n";
    let small = world.build(text, true).unwrap();
    world.disk_bytes = 1 << 20;
    let large = world.build(text, true).unwrap();
    assert_ne!(small.key, large.key);
    assert_eq!(world.log().iter().filter(|line| *line == "grow").count(), 2, "{:?}", world.log());
    // As large as the base is anyway.
    world.disk_bytes = 4096;
    assert_eq!(world.build(text, true).unwrap().key, small.key);
    assert_eq!(world.log(), [""; 0]);
}
