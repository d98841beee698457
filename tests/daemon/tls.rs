//! TLS of the daemon's own CA, as clients in other languages see it: `https://8000-<id>.localhost:<port>`.

use std::fs;
use std::process::Command;

use forkd_api::error::ErrorCode;
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use rustix::process::Signal;
use serde_json::Value;

use crate::client;
use crate::e2b::{echo, server};
use crate::world::World;

/// Asks for a page by a host name that this host's resolver need not know, and trusts what its variables name.
const PYTHON: &str = r#"
import socket, sys, urllib.request
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: real("127.0.0.1" if host.endswith(".localhost") else host, *rest, **more)
request = urllib.request.Request(sys.argv[1], headers={"e2b-traffic-access-token": sys.argv[2]})
print(urllib.request.urlopen(request).read().decode())
"#;
const NODE: &str = r#"
const [url, token] = process.argv.slice(1)
const lookup = (host, options, done) => options.all ? done(null, [{ address: '127.0.0.1', family: 4 }]) : done(null, '127.0.0.1', 4)
require('https').get(url, { lookup, headers: { 'e2b-traffic-access-token': token } }, answer => answer.pipe(process.stdout))
"#;

/// What `forkd e2b env` prints.
fn variables(world: &World, address: &str) -> Result<Vec<(String, String)>, Failure> {
    let printed = binaries::forkd(world.home(), &["e2b", "env", "--json"])
        .env("FORKD_URL", format!("http://{address}"))
        .output()?;
    assert!(printed.status.success(), "{}", binaries::transcript(&printed));
    let printed: Value = serde_json::from_slice(&printed.stdout)?;
    let members = printed.as_object().ok_or("no object")?.iter();
    Ok(members.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect())
}

#[test]
fn clients_reach_a_port_by_https_with_what_e2b_env_says() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    world.end(Signal::TERM)?;
    world.start(&["--listen", "127.0.0.1:0"])?;
    let address = world.address()?;
    let variables = variables(&world, &address)?;
    let key = variables.iter().find(|(name, _)| name == "E2B_API_KEY").ok_or("no key")?.1.clone();
    let headers = format!("x-api-key: {key}\r\ncontent-type: application/json\r\n");
    let connected = client::send_tcp(&address, &format!("POST /v2/sandboxes/{id}/connect"), &headers, "{}")?
        .parsed::<Value>(200)?;
    let text = |name: &str| connected[name].as_str().unwrap_or_default().to_owned();
    let port = server(echo)?;
    let url = format!("https://{port}-{id}.{}/page", text("domain"));
    let token = text("trafficAccessToken");
    assert!(url.contains(".localhost:"), "{url}");

    let ca = world.home().join("fetched.pem");
    fs::write(&ca, client::send_tcp(&address, "GET /v1/ca", "", "")?.body)?;
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--cacert"]).arg(&ca);
    curl.args(["--header", &format!("e2b-traffic-access-token: {token}"), &url]);
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON, &url, &token]);
    let mut node = Command::new("node");
    node.args(["-e", NODE, &url, &token]);
    for mut client in [curl, python, node] {
        let run = client.envs(variables.iter().cloned()).output()?;
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(said.starts_with("GET /page HTTP/1.1"), "{client:?}: {}", binaries::transcript(&run));
        // Servers in the guest hear how they were asked.
        assert!(said.contains("x-forwarded-proto: https"), "{said}");
    }

    // Nobody trusts the daemon without being told, and its key is the daemon's alone.
    let stranger = Command::new("curl").args(["--silent", &url]).output()?;
    assert_eq!(stranger.status.code(), Some(60), "{}", binaries::transcript(&stranger));
    let names: Vec<&str> = variables.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"NODE_EXTRA_CA_CERTS") && names.contains(&"SSL_CERT_FILE"), "{names:?}");
    for (_, file) in variables.iter().filter(|(name, _)| name.contains("CERT") || name.contains("BUNDLE")) {
        assert!(!fs::read_to_string(file)?.contains("PRIVATE"), "{file}");
    }
    Ok(())
}

#[test]
fn a_ca_stays_when_the_daemon_starts_again() -> Result<(), Failure> {
    let mut world = World::with(&["--listen", "127.0.0.1:0"])?;
    let ca =
        |world: &World| Ok::<_, Failure>(client::send_tcp(&world.address()?, "GET /v1/ca", "", "")?.body);
    let first = ca(&world)?;
    assert!(first.starts_with("-----BEGIN CERTIFICATE-----"), "{first}");
    world.end(Signal::TERM)?;
    world.start(&["--listen", "127.0.0.1:0"])?;
    assert_eq!(ca(&world)?, first);
    world.end(Signal::TERM)?;
    world.start(&["--listen", "127.0.0.1:0", "--domain", "sandboxes.example"])?;
    let other = ca(&world)?;
    assert_ne!(other, first);
    // By the socket, too; without a port there is none.
    let by_socket = client::send(&world.socket(), "GET /v1/ca", "", None)?;
    assert_eq!((by_socket.status, by_socket.body), (200, other));
    world.end(Signal::TERM)?;
    world.start(&[])?;
    client::send(&world.socket(), "GET /v1/ca", "", None)?.error(ErrorCode::NotFound)?;
    Ok(())
}
