//! `forkd-agent serve`: the agent as an ordinary process over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::agent::{Agent, Settings};
use crate::arguments::Options;
use crate::{routers, runtime, server, users};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
}

/// Serves until the process is ended. The first two lines of stdout say where, so that port 0 can be asked for.
pub fn run(options: &Options) -> Result<(), ServeError> {
    runtime::new()?.block_on(async {
        let settings = Settings { default_user: users::current().name, ..Settings::default() };
        let agent = Arc::new(Agent::start(settings, false)?);
        let envd = listen(options.envd).await?;
        let interpreter = listen(options.interpreter).await?;
        announce(&[("envd", envd.local_addr()?), ("interpreter", interpreter.local_addr()?)])?;
        tokio::join!(
            server::serve(envd, routers::envd(&agent)),
            server::serve(interpreter, routers::interpreter(&agent)),
        );
        Ok(())
    })
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })
}

fn announce(addresses: &[(&str, SocketAddr)]) -> io::Result<()> {
    use std::io::Write;
    let mut out = io::stdout().lock();
    for (name, address) in addresses {
        writeln!(out, "{name} {address}")?;
    }
    out.flush()
}
