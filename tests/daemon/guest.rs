//! Sandboxes whose guests are played: by a function of the test, or by the real agent as a process of this host.
//!
//! The tiny guest has no agent. Such a sandbox is one whose record says otherwise: written while no daemon runs, it is what the
//! next daemon finds, and the socket that the daemon then asks is the test's.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use forkd_engine::NewSnapshot;
use forkd_envd::port;
use forkd_proto::agent::{DIAL_PORT, IDENTITY_PORT};
use forkd_proto::control::Vsock;
use forkd_tests::binaries;
use forkd_tests::engine::firecracker::guest::elf;
use forkd_tests::engine::process::Failure;
use forkd_tests::fake_agent::{FakeAgents, answer_at};
use rustix::net::{RecvFlags, recv};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::World;

pub const ENVD: u32 = port::ENVD as u32;
pub const INTERPRETER: u32 = port::INTERPRETER as u32;

impl World {
    /// A sandbox, each connection to whose guest is given to `serve` with its vsock port.
    pub fn played(
        &mut self,
        serve: impl Fn(u32, UnixStream) + Send + Sync + 'static,
    ) -> Result<String, Failure> {
        let id = self.fork("base", 1)?.remove(0).id;
        self.end(Signal::TERM)?;
        let boot = fs::read_dir(self.root().join("run"))?.next().ok_or("no run directory")??;
        let directory = boot.path().join("sandboxes").join(&id);
        let path = directory.join("record.json");
        let mut record: Value = serde_json::from_slice(&fs::read(&path)?)?;
        record["shape"]["devices"]["vsock"] = json!({ "cid": 3 });
        fs::write(&path, record.to_string())?;
        self.start(&[])?;
        let listener = UnixListener::bind(directory.join("vsock"))?;
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), serve) = (client, Arc::clone(&serve)) else { return };
                thread::spawn(move || {
                    if let Some((port, client)) = greet(client) {
                        serve(port, client);
                    }
                });
            }
        });
        Ok(id)
    }

    /// A sandbox whose guest is this host, with a real agent.
    pub fn real(&mut self) -> Result<(String, Agent), Failure> {
        let agent = Agent::start(self.socket().parent().ok_or("no home")?)?;
        let ports = agent.ports.clone();
        let id = self.played(move |port, client| {
            reach(&ports, port, client);
        })?;
        Ok((id, agent))
    }

    /// A world in which every guest, however it was made, is this host with one real agent: what one sandbox sets, all others see.
    pub fn with_real_agent(
        options: &[&str],
        change: impl FnOnce(&World, &mut NewSnapshot) -> Result<(), Failure>,
    ) -> Result<(World, (FakeAgents, Agent)), Failure> {
        let mut agents = None;
        let world = World::made(&elf(100), options, |world, base| {
            let agent = Agent::start(world.home())?;
            let ports = agent.ports.clone();
            let fakes = FakeAgents::played(&world.root(), move |client| {
                if let Some((port, client)) = greet(client) {
                    match is_host_call(port, &client) {
                        true => drop(answer_at(port, client)),
                        false => reach(&ports, port, client),
                    }
                }
            });
            agents = Some((fakes, agent));
            base.shape.devices.vsock = Some(Vsock { cid: 3 });
            change(world, base)
        })?;
        Ok((world, agents.ok_or("no guest was made")?))
    }
}

/// Whether a client is the daemon, which gives a guest its identity or its configuration: those would be this host's.
fn is_host_call(port: u32, client: &UnixStream) -> bool {
    match port {
        IDENTITY_PORT => true,
        ENVD => {
            // The request stays in the socket.
            let mut bytes = [0; 256];
            let seen = recv(client, &mut bytes[..], RecvFlags::PEEK).map_or(0, |(seen, _)| seen);
            let begun = String::from_utf8_lossy(&bytes[..seen]);
            let path = begun.split(' ').nth(1).unwrap_or_default();
            path.starts_with("/forkd/") && !path.starts_with("/forkd/place") && path != "/forkd/pack"
        }
        _ => false,
    }
}

/// Connects a client to a port of an agent.
fn reach(ports: &[(u32, String)], port: u32, client: UnixStream) {
    let address = ports.iter().find(|(known, _)| *known == port).map(|(_, address)| address);
    // A test that is over has no agent any more.
    let Some(inside) = address.and_then(|address| TcpStream::connect(address).ok()) else { return };
    let _ = inside.set_nodelay(true);
    join(client, inside);
}

/// What a VM process does with a new connection: the port that it is for.
fn greet(mut client: UnixStream) -> Option<(u32, UnixStream)> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        line.extend(byte);
    }
    let port = String::from_utf8(line).ok()?.strip_prefix("CONNECT ")?.trim().parse().ok()?;
    client.write_all(b"OK 1\n").ok()?;
    Some((port, client))
}

/// Carries bytes both ways, and the ends too.
fn join(client: UnixStream, inside: TcpStream) {
    let (Ok(mut from_client), Ok(mut to_inside)) = (client.try_clone(), inside.try_clone()) else { return };
    let (mut to_client, mut from_inside) = (client, inside);
    thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_inside);
        let _ = to_inside.shutdown(Shutdown::Write);
    });
    let _ = std::io::copy(&mut from_inside, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Both);
}

/// `forkd-agent` as a process of its own.
pub struct Agent {
    process: Child,
    /// Where each of its vsock ports is.
    ports: Vec<(u32, String)>,
}

impl Agent {
    fn start(directory: &Path) -> Result<Agent, Failure> {
        let any = "127.0.0.1:0";
        let program = binaries::directory().join("forkd-agent");
        let mut process = Command::new(&program)
            .args(["serve", "--envd", any, "--interpreter", any, "--dial", any])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} cannot be started, build it first: {error}", program.display()))?;
        let said = BufReader::new(process.stdout.take().ok_or("no output")?);
        let mut agent = Agent { process, ports: Vec::new() };
        let names = [("envd", ENVD), ("interpreter", INTERPRETER), ("dial", DIAL_PORT)];
        for ((name, port), line) in names.into_iter().zip(said.lines()) {
            let line = line?;
            let address = line.strip_prefix(name).ok_or_else(|| format!("expected {name}: {line}"))?;
            agent.ports.push((port, address.trim().to_owned()));
        }
        Ok(agent)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
