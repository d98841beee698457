//! `forkd port-forward`.
//!
//! ```text
//!   program here ── TCP ──▶ listener ── a connection of its own to the daemon ──▶ port of the guest
//! ```

use std::net::SocketAddr;

use forkd_client::{Client, ClientError};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::wait::until_ended;
use super::{print, say, with_daemon};
use crate::arguments::{Forward, PortForwardOptions};
use crate::error::{self, CliError};
use crate::exit::Exit;
use crate::signals::Signals;

pub fn run(options: &PortForwardOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let id = &options.sandbox;
        // One that is not there is not found out at the first connection only.
        client.sandbox(id).await?;
        let mut signals = Signals::new()?;
        for forward in &options.ports {
            let wanted = SocketAddr::new(options.bind, forward.local);
            let listener = TcpListener::bind(wanted).await;
            let listener = listener.map_err(|source| CliError::Listen { address: wanted, source })?;
            let address =
                listener.local_addr().map_err(|error| CliError::Io("read a listener's address", error))?;
            print(&format!("{address} -> {}\n", forward.remote))?;
            tokio::spawn(listen(listener, client.clone(), id.clone(), forward.remote));
        }
        let mut why = String::new();
        let ended = until_ended(&client, std::slice::from_ref(id), |_, ended| {
            why = ended.map_or_else(|| "it was removed".into(), |ended| ended.detail);
            Ok(())
        });
        tokio::select! {
            _ = signals.end() => return Ok(Exit::Success),
            ended = ended => ended?,
        }
        Err(CliError::SandboxEnded { sandbox: id.clone(), why })
    })
}

async fn listen(listener: TcpListener, client: Client, id: String, port: u16) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(forward(stream, client.clone(), id.clone(), port));
            }
            // Too many open files, most likely: those that end make room.
            Err(error) => {
                error::print(&CliError::Io("accept a connection", error));
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

async fn forward(mut stream: TcpStream, client: Client, id: String, port: u16) {
    let _ = stream.set_nodelay(true);
    let connected: Result<_, ClientError> = client.connect_port(&id, port).await;
    match connected {
        Ok(mut guest) => {
            // Either side breaks the connection as it likes.
            let _ = copy_bidirectional(&mut stream, &mut guest).await;
        }
        Err(error) => say(&format!("port {port}: {error}")),
    }
}

/// `[LOCAL:]REMOTE`; a local port that is missing before the colon is any that is free.
pub fn parse(text: &str) -> Result<Forward, String> {
    let number = |text: &str| {
        let wrong = || format!("{text:?} is not a port: expected 1 to 65535");
        text.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong)
    };
    match text.split_once(':') {
        None => number(text).map(|port| Forward { local: port, remote: port }),
        Some(("" | "0", remote)) => Ok(Forward { local: 0, remote: number(remote)? }),
        Some((local, remote)) => Ok(Forward { local: number(local)?, remote: number(remote)? }),
    }
}
