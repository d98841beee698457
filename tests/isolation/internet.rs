//! An internet that is a namespace on the KVM host, with everything that a guest may want to reach. No packet leaves the host.
//!
//! ```text
//!   guest ── its network ── host 9.9.9.1, 2a00:9::1 ══ stand-in: 9.9.9.9, 2a00:9::9 and all of ELSEWHERE; names at port 53
//! ```
//!
//! Nothing listens at the other ports, so a packet that gets through is answered by the other side: connection refused.

use forkd_tests::suite::host;
use forkd_tests::{TestResult, host::TestHost};

/// Addresses of the internet, of private networks, and of a cloud's metadata.
pub const ELSEWHERE: [&str; 9] = [
    "8.8.8.8",
    "10.99.0.1",
    "172.16.9.9",
    "192.168.77.7",
    "100.64.0.9",
    "169.254.169.254",
    "2a00:8::8",
    "fd00:1::9",
    "fec0::9",
];
/// Who answers names.
pub const RESOLVER: &str = "9.9.9.9";

const UP: &str = "
ip netns add stand-in
ip link add name standin0 type veth peer name wan netns stand-in
ip address add 9.9.9.1/24 dev standin0
ip address add 2a00:9::1/64 dev standin0 nodad
ip link set dev standin0 up
ip -n stand-in link set dev lo up
ip -n stand-in address add 9.9.9.9/24 dev wan
ip -n stand-in address add 2a00:9::9/64 dev wan nodad
ip -n stand-in link set dev wan up
ip -n stand-in route add default via 9.9.9.1
ip -n stand-in route add default via 2a00:9::1
setsid ip netns exec stand-in dns-stand-in </dev/null >/dev/null 2>&1 &
echo $! >/run/dns-stand-in.pid
";
const DOWN: &str = "
if test -e /run/dns-stand-in.pid; then kill $(cat /run/dns-stand-in.pid) 2>/dev/null || true; rm /run/dns-stand-in.pid; fi
ip netns delete stand-in 2>/dev/null || true
ip link delete standin0 2>/dev/null || true
if test -e /run/resolv.conf.saved; then cat /run/resolv.conf.saved >/etc/resolv.conf; rm /run/resolv.conf.saved; fi
";

/// It is gone with this value.
#[derive(Debug)]
pub struct Internet(());

impl Internet {
    pub fn new() -> Result<Internet, Box<dyn std::error::Error + Send + Sync>> {
        host()?.script(DOWN)?;
        let internet = Internet(());
        let routes = ELSEWHERE.map(|address| {
            let gateway = if address.contains(':') { "2a00:9::9" } else { "9.9.9.9" };
            format!("ip -n stand-in address add {address} dev lo\nip route add {address} via {gateway}\n")
        });
        host()?.script(&format!("{UP}{}", routes.concat()))?;
        // A machine's daemon asks whom the machine asks; one of this host is told whom to ask.
        if let TestHost::Machine(_) = host()? {
            let ask = format!(
                "cp /etc/resolv.conf /run/resolv.conf.saved; echo nameserver {RESOLVER} >/etc/resolv.conf"
            );
            host()?.script(&ask)?;
        }
        Ok(internet)
    }

    /// The same on a host whose last test was cut short.
    fn remove() -> TestResult {
        host()?.script(DOWN)?;
        Ok(())
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        // The next test removes what is left.
        let _ = Internet::remove();
    }
}
