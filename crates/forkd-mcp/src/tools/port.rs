//! `expose_port`.

use forkd_client::Address;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::call::{Call, wrong};
use crate::failure::Failure;

/// Where a daemon that is asked over its socket listens for TCP, unless it was told otherwise.
const USUAL_URL: &str = "http://127.0.0.1:8889";

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
    /// Whether requests need the header `Authorization: Bearer TOKEN`, with the token that this server uses.
    needs_token: bool,
}

pub(super) fn expose_port(call: &Call<'_>, wanted: ExposePort) -> Result<Answer, Failure> {
    let ExposePort { sandbox, port } = wanted;
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if port == 0 || sandbox.is_empty() || !sandbox.bytes().all(is_id) {
        return Err(wrong(
            "expose_port",
            format!("expected a sandbox's id and a port, not {sandbox:?} and {port}"),
        ));
    }
    let (base, note) = match call.client.address() {
        Address::Unix(_) => (
            USUAL_URL.to_owned(),
            " The daemon is asked over its Unix socket here; this is where it usually listens for TCP.",
        ),
        address => (address.to_string(), ""),
    };
    let url = format!("{base}/v1/sandboxes/{sandbox}/proxy/{port}/");
    let needs_token = call.caller.name.starts_with("token:");
    let token = match needs_token {
        true => " Requests need the header `Authorization: Bearer TOKEN`.",
        false => "",
    };
    Ok(Answer::with_data(format!("{url}\n{token}{note}").trim(), &Exposed { url, needs_token }))
}
