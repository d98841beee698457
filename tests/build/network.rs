//! What commands of a build reach: an internet that is a namespace on the KVM host, and nothing else.

use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check};

use crate::dockerfile::{Error, World};

/// Nobody listens there, so whoever gets through is told so by the other side.
const INTERNET: &str = "
ip netns add test-internet
ip link add name testwan0 type veth peer name wan netns test-internet
ip address add 9.9.9.1/24 dev testwan0
ip link set dev testwan0 up
ip -n test-internet address add 9.9.9.9/24 dev wan
ip -n test-internet address add 10.99.0.1/32 dev wan
ip -n test-internet link set dev wan up
ip -n test-internet route add default via 9.9.9.1
ip route add 10.99.0.1 via 9.9.9.9
";
const NO_INTERNET: &str =
    "ip netns delete test-internet 2>/dev/null || true; ip link delete testwan0 2>/dev/null || true";

/// Connects, and looks at why that fails.
const COMMANDS: &str = r#"FROM debian:bookworm
COPY src/tool /tool
RUN grep -qx 'nameserver 198.19.255.1' /etc/resolv.conf && \
    try() { bash -c "echo >/dev/tcp/$1" 2>&1 | tail -n 1; } && \
    try 9.9.9.9/81 | grep -q 'Connection refused' && \
    try 10.99.0.1/81 | grep -q 'No route to host' && \
    try 9.9.9.1/22 | grep -qv 'Connection refused' && \
    try 169.254.169.254/80 | grep -q 'No route to host'
"#;
const WITHOUT: &str = r#"FROM debian:bookworm
COPY src/tool /tool
RUN test ! -e /sys/class/net/eth0 && ! grep -q 198.19.255.1 /etc/resolv.conf
"#;

pub fn commands_reach_the_internet_only() -> TestResult {
    let world = World::new()?;
    host()?.script(NO_INTERNET)?;
    host()?.script(INTERNET)?;
    let result = builds(&world);
    host()?.script(NO_INTERNET)?;
    result?;
    let left = host()?.script("ip netns list; ip -o link show; ls /run/netns")?;
    // Those of sandboxes may be there, from a daemon that keeps some ready; those of builds begin with a 4.
    check!(!left.contains("forkd-4") && !left.contains("forkd4"), "networks are left: {left}");
    Ok(())
}

fn builds(world: &World) -> Result<(), Error> {
    let tag = "forkd-tests/network";
    world.built(COMMANDS, tag, &[])?;
    world.remove(tag)?;
    // The resolver was this boot's only.
    world.built(WITHOUT, tag, &["--network", "none"])?;
    world.remove(tag)?;
    let output = world.build("FROM debian:bookworm\nRUN exit 4\n", tag, &["--network", "none"])?;
    let said = binaries::transcript(&output);
    check!(said.contains("had no network: it was disabled"), "{said}");
    Ok(())
}
