//! `forkd serve`: the daemon.

use std::path::PathBuf;

use forkd_daemon::config::{Config, Limits, Socket, Tcp, TlsFiles};
use forkd_daemon::{App, Server, routes, signals};
use forkd_host::home;

use crate::arguments::{Listen, ServeOptions};
use crate::error::CliError;
use crate::exit::Exit;
use crate::logging;

/// The socket's name among forkd's files.
const SOCKET: &str = "forkd.sock";

pub fn run(options: &ServeOptions) -> Result<Exit, CliError> {
    logging::start(&options.log)?;
    let config = config(options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Io("start", error))?;
    runtime.block_on(serve(&config))
}

async fn serve(config: &Config) -> Result<Exit, CliError> {
    let app = App::new(config)?;
    let server = Server::bind(config, app.clone()).await?;
    let signals =
        signals::listen(server.handle()).map_err(|error| CliError::Io("listen to signals", error))?;
    if let Some(socket) = server.socket() {
        tracing::info!(socket = %socket.display(), "listening");
    }
    if let Some(address) = server.address() {
        let tls = config.tcp.as_ref().is_some_and(|tcp| tcp.tls.is_some());
        tracing::info!(%address, tls, "listening");
        if !app.tokens.any() {
            tracing::warn!("there are no tokens: every user of this host may use {address}");
        }
    }
    tokio::select! {
        () = server.serve(routes::router(&app)) => tracing::info!("stopped"),
        () = signals => tracing::warn!("stopped at once, as asked for twice"),
    }
    Ok(Exit::Success)
}

fn config(options: &ServeOptions) -> Result<Config, CliError> {
    let home = home::directory()?;
    let tls = match (&options.tls_cert, &options.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(TlsFiles { certificate: certificate.clone(), key: key.clone() })
        }
        _ => None,
    };
    let tcp = match options.listen {
        Listen::Nowhere => None,
        Listen::At(address) => Some(Tcp { address, tls }),
    };
    let group = options.socket_group.as_deref().map(group).transpose()?;
    let path: PathBuf = options.socket.clone().unwrap_or_else(|| home.join(SOCKET));
    Ok(Config {
        socket: Some(Socket { path, group }),
        tcp,
        audit: options.audit_log.clone(),
        limits: Limits::default(),
        home,
    })
}

/// The number of a group: given as such, or looked up among the groups of this host.
fn group(name: &str) -> Result<u32, CliError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let groups =
        std::fs::read_to_string("/etc/group").map_err(|error| CliError::Io("read /etc/group", error))?;
    find_group(&groups, name).ok_or_else(|| CliError::NoGroup(name.to_owned()))
}

fn find_group(groups: &str, name: &str) -> Option<u32> {
    // name:password:number:members
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name() {
        let groups = "root:x:0:\nkvm:x:104:a,b\nbroken:x\n";
        assert_eq!(find_group(groups, "kvm"), Some(104));
        assert_eq!(find_group(groups, "kv"), None);
        assert_eq!(find_group(groups, "broken"), None);
        assert!(matches!(group("7"), Ok(7)));
    }
}
