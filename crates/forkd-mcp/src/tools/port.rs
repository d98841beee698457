//! `expose_port`.

use forkd_api::system::TcpPort;
use forkd_client::Address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::call::{Call, wrong};
use crate::failure::Failure;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExposePort {
    /// The sandbox's id.
    sandbox: String,
    /// The port that a program in the sandbox listens on, at 0.0.0.0 or localhost.
    #[schemars(range(min = 1))]
    port: u16,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Exposed {
    /// What is sent below it reaches the port.
    url: String,
    /// Whether requests need the header `Authorization: Bearer TOKEN`, with a token of the daemon.
    needs_token: bool,
}

pub(super) async fn expose_port(call: &Call<'_>, wanted: ExposePort) -> Result<Answer, Failure> {
    let ExposePort { sandbox, port } = wanted;
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if port == 0 || sandbox.is_empty() || !sandbox.bytes().all(is_id) {
        return Err(wrong(
            "expose_port",
            format!("expected a sandbox's id and a port, not {sandbox:?} and {port}"),
        ));
    }
    let what = format!("Cannot expose port {port} of sandbox {sandbox}");
    call.open(&what, &sandbox).await?;
    let TcpPort { url, needs_token } = match call.client.address() {
        Address::Unix(_) => tcp_port(call, &what).await?,
        address => TcpPort { url: address.to_string(), needs_token: call.caller.name.starts_with("token:") },
    };
    let url = format!("{url}/v1/sandboxes/{sandbox}/proxy/{port}/");
    let token = match needs_token {
        true => {
            "Requests need the header `Authorization: Bearer TOKEN`; `forkd token create NAME` makes a token."
        }
        false => "",
    };
    Ok(Answer::with_data(format!("{url}\n{token}").trim(), &Exposed { url, needs_token }))
}

/// The TCP port of a daemon that is asked over its Unix socket.
async fn tcp_port(call: &Call<'_>, what: &str) -> Result<TcpPort, Failure> {
    let version = call.client.version().await.map_err(|error| call.failed(what, &error))?;
    version.tcp.ok_or_else(|| {
        Failure::new(what, "the daemon does not listen on TCP")
            .next("ask the user to start it with a TCP port: forkd serve --listen 127.0.0.1:8889")
    })
}
