//! Agents that do what hostile guests do. They accept at the sockets that VM processes listen at, with copies of the processes' own
//! descriptors: the tiny guest has no driver for them, so all who ask the guest reach the agents, however early they ask.
//!
//! What a fake agent does is named by the program, or the code, that it is asked to run.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forkd_proto::agent::IDENTITY_PORT;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::{Value, json};

use crate::engine::tiny::run_directory;

/// As long as anybody may wait for one that says nothing.
const SILENCE: Duration = Duration::from_secs(600);
/// The flags of a socket that listens, as /proc/net/unix shows them.
const LISTENING: &str = "00010000";
const PIECE: usize = 48 << 10;

/// They watch an engine's directory as long as this lives.
#[derive(Debug)]
pub struct FakeAgents {
    stopped: Arc<AtomicBool>,
}

impl FakeAgents {
    pub fn below(root: &Path) -> FakeAgents {
        FakeAgents::played(root, |client| drop(serve(client)))
    }

    /// The same with other agents: `serve` gets each connection before anything was said.
    pub fn played(root: &Path, serve: impl Fn(UnixStream) + Clone + Send + 'static) -> FakeAgents {
        let stopped = Arc::new(AtomicBool::new(false));
        let (root, stop) = (root.to_owned(), Arc::clone(&stopped));
        std::thread::spawn(move || {
            let mut ours = BTreeSet::new();
            while !stop.load(Ordering::Relaxed) {
                for socket in listening(&run_directory(&root)) {
                    // A socket is on its way from the daemon to its process for a moment. It is looked for again.
                    if !ours.contains(&socket)
                        && let Some(listener) = copy(socket)
                    {
                        ours.insert(socket);
                        let serve = serve.clone();
                        std::thread::spawn(move || accept(&listener, serve));
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        FakeAgents { stopped }
    }
}

impl Drop for FakeAgents {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// The inodes of the sockets that lead into guests below a directory.
fn listening(run: &Path) -> Vec<u64> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let bound = sockets.lines().filter_map(|line| {
        let [_, _, _, flags, _, _, inode, path] =
            line.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
        let path = Path::new(path);
        // Connections have the name of the socket that accepted them.
        (flags == LISTENING && path.starts_with(run) && path.ends_with("vsock"))
            .then(|| inode.parse().ok())?
    });
    bound.collect()
}

/// A descriptor of a socket that another process has.
fn copy(socket: u64) -> Option<UnixListener> {
    let wanted = PathBuf::from(format!("socket:[{socket}]"));
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse() else { continue };
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            if fs::read_link(descriptor.path()).is_ok_and(|target| target == wanted) {
                let number = descriptor.file_name().to_string_lossy().parse().ok()?;
                let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
                let copied = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
                // The process may have closed it and opened another in its place.
                let same = rustix::fs::fstat(&copied).is_ok_and(|stat| stat.st_ino == socket);
                return same.then(|| copied.into());
            }
        }
    }
    None
}

/// The process has made the socket one that does not block.
fn accept(listener: &UnixListener, serve: impl Fn(UnixStream) + Clone + Send + 'static) -> Result<(), Errno> {
    loop {
        rustix::event::poll(&mut [PollFd::new(listener, PollFlags::IN)], None)?;
        // Clients come and go.
        if let Ok((client, _)) = listener.accept() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(client));
        }
    }
}

/// Takes an identity.
fn identify(reader: &mut impl BufRead, writer: &mut impl Write) -> io::Result<()> {
    writer.write_all(b"{\"version\":1}\n")?;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let asked: Value = serde_json::from_str(&line)?;
    let step = |name: &str| json!({ "step": name, "ok": true, "took_us": 1 });
    let steps = [step("clock"), step("hooks")];
    let answer = json!({ "version": 1, "generation": asked["generation"], "ok": true, "steps": steps });
    // At once: piece by piece, whoever reads it would be woken for each.
    writer.write_all(format!("{answer}\n").as_bytes())
}

/// Plays the agent to one client.
pub(crate) fn serve(mut client: UnixStream) -> io::Result<()> {
    let mut greeting = String::new();
    BufReader::new(&client).read_line(&mut greeting)?;
    client.write_all(b"OK 1\n")?;
    let port = greeting.trim().strip_prefix("CONNECT ").and_then(|port| port.parse().ok());
    answer_at(port.unwrap_or_default(), client)
}

/// Plays the agent to one client that is connected to this port.
pub fn answer_at(port: u32, client: UnixStream) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut writer = client;
    if port == IDENTITY_PORT {
        return identify(&mut reader, &mut writer);
    }
    while let Some((path, body)) = request(&mut reader)? {
        let path = path.split('?').next().unwrap_or_default();
        match path {
            "/forkd/ready" => answer(&mut writer, &json!({ "version": 1, "state": "ready" }))?,
            "/forkd/identity" => {
                let generation = &body["generation"];
                answer(
                    &mut writer,
                    &json!({ "version": 1, "generation": generation, "ok": true, "steps": [] }),
                )?;
            }
            "/process.Process/Start" => {
                let [command, first, second] =
                    [&body["process"]["cmd"], &body["process"]["args"][0], &body["process"]["args"][1]]
                        .map(|word| word.as_str().unwrap_or_default().to_owned());
                // What a shell is given is a program, too.
                let (what, how_much) = match (command.as_str(), first.as_str()) {
                    ("sh", "-c") => {
                        let (what, how_much) = second.split_once(' ').unwrap_or((&second, "0"));
                        (what.to_owned(), how_much.to_owned())
                    }
                    _ => (command, first),
                };
                return misbehave(&mut writer, &what, how_much.parse().unwrap_or(0), &Exec);
            }
            "/execute" => {
                let code = body["code"].as_str().unwrap_or_default().to_owned();
                let (what, how_much) = code.split_once(' ').unwrap_or((&code, "0"));
                return misbehave(&mut writer, what, how_much.parse().unwrap_or(0), &Eval);
            }
            _ => answer(&mut writer, &json!({}))?,
        }
    }
    Ok(())
}

fn request(reader: &mut impl BufRead) -> io::Result<Option<(String, Value)>> {
    let (mut first, mut length) = (String::new(), 0);
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    // What comes as an envelope has five bytes before it.
    let json = body.iter().position(|byte| *byte == b'{').map_or(&[][..], |begin| &body[begin..]);
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Some((path, serde_json::from_slice(json).unwrap_or_default())))
}

fn answer(writer: &mut impl Write, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// How a protocol says things.
trait Says {
    fn begin(&self) -> Vec<u8>;
    fn output(&self, bytes: &[u8]) -> Vec<u8>;
    fn end(&self, exit_code: usize) -> Vec<u8>;
    /// The beginning of something that never ends.
    fn endless(&self) -> Vec<u8>;
}

struct Exec;
struct Eval;

fn envelope(flags: u8, payload: &Value) -> Vec<u8> {
    let payload = payload.to_string();
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[flags][..], &length.to_be_bytes(), payload.as_bytes()].concat()
}

impl Says for Exec {
    fn begin(&self) -> Vec<u8> {
        envelope(0, &json!({ "event": { "start": { "pid": 7 } } }))
    }

    fn output(&self, bytes: &[u8]) -> Vec<u8> {
        envelope(0, &json!({ "event": { "data": { "stdout": STANDARD.encode(bytes) } } }))
    }

    fn end(&self, exit_code: usize) -> Vec<u8> {
        let status = format!("exit status {exit_code}");
        let end = json!({ "event": { "end": { "exitCode": exit_code, "exited": true, "status": status } } });
        [envelope(0, &end), envelope(2, &json!({}))].concat()
    }

    fn endless(&self) -> Vec<u8> {
        [&[0][..], &u32::MAX.to_be_bytes(), b"{\""].concat()
    }
}

impl Says for Eval {
    fn begin(&self) -> Vec<u8> {
        format!("{}\n", json!({ "type": "number_of_executions", "execution_count": 1 })).into_bytes()
    }

    fn output(&self, bytes: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(bytes);
        format!("{}\n", json!({ "type": "stdout", "text": text, "timestamp": 0 })).into_bytes()
    }

    fn end(&self, _: usize) -> Vec<u8> {
        format!("{}\n", json!({ "type": "end_of_execution" })).into_bytes()
    }

    fn endless(&self) -> Vec<u8> {
        b"{\"type\": \"".to_vec()
    }
}

/// The next answer is a body without a length, which ends with the connection.
fn misbehave(writer: &mut impl Write, what: &str, how_much: usize, says: &dyn Says) -> io::Result<()> {
    if what == "silent" {
        std::thread::sleep(SILENCE);
        return Ok(());
    }
    if what == "no-http" {
        return writer.write_all(&[b'%'; 4096]);
    }
    if what == "refuse" {
        return write!(writer, "HTTP/1.1 500 No\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
    }
    writer.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
    writer.write_all(&says.begin())?;
    match what {
        "garbage" => writer.write_all(&[b"\0\0\0\0\x07", &[b'%'; 64][..], b"\n"].concat()),
        "half" => Ok(()),
        "stall" => {
            std::thread::sleep(SILENCE);
            Ok(())
        }
        "fail" => {
            writer.write_all(&says.output(b"it is\nbroken\n"))?;
            writer.write_all(&says.end(how_much))
        }
        "endless" => {
            writer.write_all(&says.endless())?;
            loop {
                writer.write_all(&[b'x'; PIECE])?;
            }
        }
        "flood" => {
            let piece = says.output(&[b'x'; PIECE]);
            for _ in 0..(how_much << 20) / PIECE {
                writer.write_all(&piece)?;
            }
            writer.write_all(&says.end(0))
        }
        _ => writer.write_all(&says.end(0)),
    }
}
