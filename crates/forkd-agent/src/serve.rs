//! `forkd-agent serve`: the agent as an ordinary process, over TCP or vsock.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;

use crate::agent::{Agent, Settings};
use crate::arguments::{Address, Options};
use crate::{dial, routers, runtime, server, transfer, users};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    #[error("cannot listen on {address:?}: {source}")]
    Listen { address: Address, source: io::Error },
}

/// Serves until the process is ended. The first lines of stdout say where, so that port 0 can be asked for.
pub fn run(options: &Options) -> Result<(), ServeError> {
    runtime::new()?.block_on(async {
        let settings = Settings { default_user: users::current().name, ..Settings::default() };
        let agent = Arc::new(Agent::start(settings, false)?);
        let envd = serve("envd", options.envd, routers::envd(&agent).merge(transfer::routes())).await?;
        let interpreter = serve("interpreter", options.interpreter, routers::interpreter(&agent)).await?;
        let ports = match options.dial {
            Some(address) => Some(dial_at(address, &agent).await?),
            None => None,
        };
        tokio::join!(envd, interpreter);
        drop(ports);
        Ok(())
    })
}

/// Listens, says so, and returns what serves.
async fn serve(name: &str, address: Address, router: Router) -> Result<impl Future<Output = ()>, ServeError> {
    let refused = |source| ServeError::Listen { address, source };
    let task = match address {
        Address::Tcp(tcp) => {
            let listener = TcpListener::bind(tcp).await.map_err(refused)?;
            announce(name, listener.local_addr()?)?;
            tokio::spawn(server::serve(listener, router))
        }
        Address::Vsock(port) => {
            let listener = server::listen_vsock(port).map_err(refused)?;
            announce(name, format_args!("vsock:{port}"))?;
            tokio::spawn(server::serve(listener, router))
        }
    };
    Ok(async {
        // A panic of the accepting loop is reported by the runtime; the other port still works.
        let _ = task.await;
    })
}

/// Listens for clients that want to be connected to a port. The task ends with the runtime.
async fn dial_at(address: Address, agent: &Arc<Agent>) -> Result<tokio::task::JoinHandle<()>, ServeError> {
    let refused = |source| ServeError::Listen { address, source };
    let agent = Arc::clone(agent);
    match address {
        Address::Tcp(tcp) => {
            let listener = TcpListener::bind(tcp).await.map_err(refused)?;
            announce("dial", listener.local_addr()?)?;
            Ok(tokio::spawn(dial::serve(listener, agent)))
        }
        Address::Vsock(port) => {
            let listener = server::listen_vsock(port).map_err(refused)?;
            announce("dial", format_args!("vsock:{port}"))?;
            Ok(tokio::spawn(dial::serve(listener, agent)))
        }
    }
}

fn announce(name: &str, address: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{name} {address}")?;
    out.flush()
}
