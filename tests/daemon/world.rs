//! A daemon with a home of its own, which can be stopped, killed and started again.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::{CreatedSandboxes, Sandbox, SandboxList};
use forkd_api::snapshot::{Snapshot, SnapshotList};
use forkd_engine::{Networking, NewSnapshot};
use forkd_proto::control::Vsock;
use forkd_tests::alone;
use forkd_tests::binaries;
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
pub use forkd_tests::engine::tiny::lives;
use forkd_tests::engine::tiny::{self, PATIENCE};
use forkd_tests::fake_agent::FakeAgents;
use forkd_tests::tiny_daemon::TinyDaemon;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{self, Answer, Lines};

pub struct World {
    daemon: TinyDaemon,
    _home: TempDir,
}

impl Deref for World {
    type Target = TinyDaemon;

    fn deref(&self) -> &TinyDaemon {
        &self.daemon
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut TinyDaemon {
        &mut self.daemon
    }
}

impl World {
    /// A daemon that has the snapshot `base`.
    pub fn new() -> Result<World, Failure> {
        World::with(&[])
    }

    pub fn with(options: &[&str]) -> Result<World, Failure> {
        World::with_guest(&guest::elf(100), options)
    }

    /// The same, of another guest.
    pub fn with_guest(elf: &[u8], options: &[&str]) -> Result<World, Failure> {
        World::made(elf, options, |_, _| Ok(()))
    }

    /// The same with a `base` that is made in another way, from the daemon's home.
    pub fn with_base(
        options: &[&str],
        change: impl FnOnce(&World, &mut NewSnapshot) -> Result<(), Failure>,
    ) -> Result<World, Failure> {
        World::made(&guest::elf(100), options, change)
    }

    /// The same, of a guest whose agent is a fake one.
    pub fn with_agents(options: &[&str]) -> Result<(World, FakeAgents), Failure> {
        World::with_guest_and_agents(&guest::elf(100), options)
    }

    /// The same, of another guest.
    pub fn with_guest_and_agents(elf: &[u8], options: &[&str]) -> Result<(World, FakeAgents), Failure> {
        let mut agents = None;
        let world = World::made(elf, options, |world, base| {
            agents = Some(FakeAgents::below(&world.root()));
            base.shape.devices.vsock = Some(Vsock { cid: 3 });
            Ok(())
        })?;
        Ok((world, agents.ok_or("nobody was asked")?))
    }

    /// The same, of another guest and in another way.
    pub fn made(
        elf: &[u8],
        options: &[&str],
        change: impl FnOnce(&World, &mut NewSnapshot) -> Result<(), Failure>,
    ) -> Result<World, Failure> {
        let home = tempfile::tempdir()?;
        let mut world = World { daemon: TinyDaemon::new(home.path(), None), _home: home };
        let networking = match options.contains(&"--network") {
            true => alone::networking(),
            false => Networking::None,
        };
        world.make_base(elf, networking, |base| change(&world, base))?;
        world.start(options)?;
        Ok(world)
    }

    /// Where the daemon listens for TCP.
    pub fn address(&self) -> Result<String, Failure> {
        let log = self.log();
        let address = log.rsplit("address=").next().and_then(|rest| rest.split_whitespace().next());
        Ok(address.ok_or("the daemon does not listen")?.to_owned())
    }

    /// A new token of the daemon's.
    pub fn token(&self, name: &str, scope: &str) -> Result<String, Failure> {
        self.token_with(name, &["--scope", scope])
    }

    pub fn token_with(&self, name: &str, options: &[&str]) -> Result<String, Failure> {
        self.forkd(&[&["token", "create", name], options].concat())
    }

    /// What a command prints.
    pub fn forkd(&self, arguments: &[&str]) -> Result<String, Failure> {
        let run = binaries::forkd(self.home(), arguments).output()?;
        assert!(run.status.success(), "{}", binaries::transcript(&run));
        Ok(String::from_utf8(run.stdout)?.trim().to_owned())
    }

    pub fn start(&mut self, options: &[&str]) -> Result<(), Failure> {
        self.start_with(options, &[])
    }

    /// The same, with variables of the environment.
    pub fn start_with(&mut self, options: &[&str], variables: &[(&str, &str)]) -> Result<(), Failure> {
        self.launch(options, variables)?;
        self.until("the daemon answers", |world| {
            Ok(client::send(&world.socket(), "GET /healthz", "", None)
                .is_ok_and(|answer| answer.status == 200))
        })
    }

    /// Starts a daemon, and waits for nothing.
    pub fn launch(&mut self, options: &[&str], variables: &[(&str, &str)]) -> Result<(), Failure> {
        let nowhere: &[&str] = if options.contains(&"--listen") { &[] } else { &["--listen", "none"] };
        let (certificate, key) = (self.home().join("cert.pem"), self.home().join("key.pem"));
        let mut arguments = nowhere.to_vec();
        for option in options {
            match *option {
                // A certificate of its own.
                "--tls" => {
                    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
                    fs::write(&certificate, made.cert.pem())?;
                    fs::write(&key, made.signing_key.serialize_pem())?;
                    let files = [certificate.to_str(), key.to_str()].map(Option::unwrap_or_default);
                    arguments.extend(["--tls-cert", files[0], "--tls-key", files[1]]);
                }
                option => arguments.push(option),
            }
        }
        self.daemon.launch(&arguments, variables)
    }

    /// The most memory that the daemon has had so far, in KiB.
    pub fn peak_kib(&self) -> Result<u64, Failure> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no peak")?;
        Ok(line.split_whitespace().next().ok_or("no number")?.parse()?)
    }

    /// As `GET /v1/sandboxes`, without a body.
    pub fn ask(&self, request: &str) -> Result<Answer, Failure> {
        client::send(&self.socket(), request, "", None)
    }

    pub fn tell(&self, request: &str, body: Value) -> Result<Answer, Failure> {
        client::send(&self.socket(), request, "", Some(&body))
    }

    pub fn tell_with(&self, headers: &str, request: &str, body: Value) -> Result<Answer, Failure> {
        client::send(&self.socket(), request, headers, Some(&body))
    }

    /// Sends bytes as they are.
    pub fn upload(&self, headers: &str, request: &str, body: &[u8]) -> Result<Answer, Failure> {
        client::upload(&self.socket(), request, headers, body)
    }

    /// Says that so many bytes come, sends fewer, and goes away.
    pub fn break_off(&self, request: &str, said: usize, body: &[u8]) -> Result<(), Failure> {
        client::break_off(&self.socket(), request, said, body)
    }

    pub fn abandon(&self, request: &str, body: &Value, patience: Duration) -> Result<(), Failure> {
        client::abandon(&self.socket(), request, "", body, patience)
    }

    /// Every VM that runs is a sandbox that is listed, once no request is under way.
    pub fn until_none_is_lost(&self) -> Result<(), Failure> {
        self.until("every VM is a sandbox", |world| {
            let mut known: Vec<i32> =
                world.sandboxes("?limit=1000")?.iter().filter_map(|it| it.pid).collect();
            known.sort_unstable();
            Ok(known == tiny::vms(&world.root()))
        })
    }

    pub fn lines(&self, request: &str) -> Result<Lines, Failure> {
        Lines::open(&self.socket(), request, "", None)
    }

    pub fn lines_of(&self, headers: &str, request: &str, body: &Value) -> Result<Lines, Failure> {
        Lines::open(&self.socket(), request, headers, Some(body))
    }

    pub fn create(&self, body: Value) -> Result<CreatedSandboxes, Failure> {
        self.tell("POST /v1/sandboxes", body)?.parsed(201)
    }

    /// New sandboxes of a snapshot.
    pub fn fork(&self, tag: &str, n: u32) -> Result<Vec<Sandbox>, Failure> {
        let created = self.create(json!({ "snapshot_tag": tag, "n": n }))?;
        assert!(created.failures.is_empty(), "{:?}", created.failures);
        Ok(created.sandboxes)
    }

    pub fn sandbox(&self, id: &str) -> Result<Sandbox, Failure> {
        self.ask(&format!("GET /v1/sandboxes/{id}"))?.parsed(200)
    }

    pub fn sandboxes(&self, query: &str) -> Result<Vec<Sandbox>, Failure> {
        Ok(self.ask(&format!("GET /v1/sandboxes{query}"))?.parsed::<SandboxList>(200)?.sandboxes)
    }

    pub fn snapshot(&self, tag: &str) -> Result<Snapshot, Failure> {
        self.ask(&format!("GET /v1/snapshots/{tag}"))?.parsed(200)
    }

    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Failure> {
        Ok(self.ask("GET /v1/snapshots")?.parsed::<SnapshotList>(200)?.snapshots)
    }

    /// A sandbox that has ended because its time was over.
    pub fn ended(&self) -> Result<String, Failure> {
        let created = self.create(json!({ "snapshot_tag": "base", "ttl_secs": 1 }))?;
        let id = created.sandboxes.first().ok_or("none")?.id.clone();
        self.until("it ends", |world| Ok(world.sandbox(&id)?.ended.is_some()))?;
        Ok(id)
    }

    /// Whether a request is refused with this code.
    pub fn refuses(&self, code: ErrorCode, request: &str, body: Value) -> Result<String, Failure> {
        Ok(self.tell(request, body)?.error(code)?.error)
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, holds: impl Fn(&World) -> Result<bool, Failure>) -> Result<(), Failure> {
        self.until_within(PATIENCE, what, holds)
    }

    pub fn until_within(
        &self,
        patience: Duration,
        what: &str,
        holds: impl Fn(&World) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        while !holds(self)? {
            if begun.elapsed() > patience {
                return Err(format!("not in time: {what}\n{}", self.log()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for World {
    /// Whatever the test has come to, no VM is left.
    fn drop(&mut self) {
        let emptied = self.daemon.remove_everything();
        // A test that has failed already says more.
        if !std::thread::panicking() {
            emptied.expect("everything can be removed");
            for place in ["sandboxes", "zygotes", "snapshots"] {
                assert_eq!(tiny::names(&self.root(), place), [""; 0]);
            }
        }
    }
}
