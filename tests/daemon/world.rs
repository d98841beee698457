//! A daemon with a home of its own, which can be stopped, killed and started again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::{CreatedSandboxes, Sandbox, SandboxList};
use forkd_api::snapshot::{Snapshot, SnapshotList};
use forkd_engine::{Networking, NewSnapshot};
use forkd_proto::control::Vsock;
use forkd_tests::binaries;
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
pub use forkd_tests::engine::tiny::lives;
use forkd_tests::engine::tiny::{self, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::client::{self, Answer, Lines};
use crate::fake_agent::FakeAgents;

pub struct World {
    home: TempDir,
    daemon: Option<Child>,
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
        let mut world = World { home: tempfile::tempdir()?, daemon: None };
        let kernel = world.home.path().join("kernel");
        fs::write(&kernel, elf)?;
        let networking = match options.contains(&"--network") {
            true => networking(),
            false => Networking::None,
        };
        let (runtime, engine, _) = tiny::start_networked(&world.root(), 1 << 40, networking)?;
        let (steps, _told) = mpsc::channel(16);
        let made: Result<(), Failure> = runtime.block_on(async {
            let mut base = tiny::new_snapshot("base", kernel)?;
            change(&world, &mut base)?;
            engine.make(base, &steps).await?.durable().await?;
            Ok(())
        });
        drop(engine);
        runtime.shutdown_timeout(PATIENCE);
        made?;
        world.start(options)?;
        Ok(world)
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn root(&self) -> PathBuf {
        self.home.path().join("engine")
    }

    /// Where the daemon finds kernels and images.
    pub fn library(&self) -> PathBuf {
        self.home.path().join("library")
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("forkd.sock")
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
        let run = binaries::forkd(self.home.path(), arguments).output()?;
        assert!(run.status.success(), "{}", binaries::transcript(&run));
        Ok(String::from_utf8(run.stdout)?.trim().to_owned())
    }

    pub fn pid(&self) -> Result<u32, Failure> {
        Ok(self.daemon.as_ref().ok_or("no daemon")?.id())
    }

    /// Everything that daemons have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
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
        let (certificate, key) = (self.home.path().join("cert.pem"), self.home.path().join("key.pem"));
        let mut arguments = [&["serve"], nowhere].concat();
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
        let log = File::options().create(true).append(true).open(self.home.path().join("log"))?;
        let mut daemon = binaries::forkd(self.home.path(), &arguments);
        // Not every host that tests run on has cgroup v2.
        daemon.env("FORKD_CGROUP", "none");
        // Tests see every VM and what every request passes. Those of learning turn it on.
        daemon.env("FORKD_PREFAULT", "0");
        daemon.envs(variables.iter().copied()).stdout(Stdio::null()).stderr(log);
        self.daemon = Some(daemon.spawn()?);
        Ok(())
    }

    /// Waits for the end of a daemon that ends by itself.
    #[cfg(debug_assertions)]
    pub fn ended_itself(&mut self) -> Result<std::process::ExitStatus, Failure> {
        let begun = Instant::now();
        let daemon = self.daemon.as_mut().ok_or("no daemon")?;
        loop {
            match daemon.try_wait()? {
                Some(status) => {
                    self.daemon = None;
                    return Ok(status);
                }
                None if begun.elapsed() > PATIENCE => return Err("the daemon does not end".into()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Ends the daemon with a signal, and waits for its end.
    pub fn end(&mut self, signal: Signal) -> Result<(), Failure> {
        let mut daemon = self.daemon.take().ok_or("no daemon")?;
        kill_process(Pid::from_child(&daemon), signal)?;
        let status = daemon.wait()?;
        assert_eq!(status.success(), signal != Signal::KILL, "{status}: {}", self.log());
        Ok(())
    }

    /// The most memory that the daemon has had so far, in KiB.
    pub fn peak_kib(&self) -> Result<u64, Failure> {
        let id = self.daemon.as_ref().ok_or("no daemon")?.id();
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
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

/// Networks, for a test that has this host for itself.
pub fn networking() -> Networking {
    Networking::Pooled {
        host: forkd_net::Settings::default(),
        pool: forkd_net::PoolSettings { ready: 2, ..Default::default() },
        bandwidth: None,
    }
}

impl Drop for World {
    /// Whatever the test has come to, no VM is left.
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let emptied = tiny::start(&self.root()).and_then(|(runtime, engine, _)| {
            let removed = runtime.block_on(tiny::remove_everything(&engine));
            runtime.shutdown_timeout(PATIENCE);
            Ok(removed?)
        });
        // A test that has failed already says more.
        if !std::thread::panicking() {
            emptied.expect("everything can be removed");
            for place in ["sandboxes", "zygotes", "snapshots"] {
                assert_eq!(tiny::names(&self.root(), place), [""; 0]);
            }
        }
    }
}
