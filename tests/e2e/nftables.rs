//! nftables as the egress policy will use it.

use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};

/// A rule set with a set, a counter and a verdict loads in a namespace of its own, and a packet meets it.
pub fn a_rule_set_loads() -> TestResult {
    let output = host()?.script(
        "exec unshare --net sh -eu <<'SCRIPT'
ip link set lo up
nft -f - <<'RULES'
table inet forkd_test {
    set denied { type ipv4_addr; flags interval; elements = { 127.0.0.2, 169.254.0.0/16 }; }
    chain egress {
        type filter hook output priority filter; policy accept;
        ip daddr @denied counter drop
    }
}
RULES
# Bash sends one datagram; nobody needs to listen.
bash -c 'echo hello >/dev/udp/127.0.0.2/9' || true
nft list ruleset
SCRIPT",
    )?;
    check!(output.contains("ip daddr @denied counter packets 1 "), "the rule set is: {output}");
    Ok(())
}
