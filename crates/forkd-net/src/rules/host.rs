//! The host's table: what leaves sandboxes is translated, and nothing else of the host is theirs.
//!
//! ```text
//!   from a sandbox ─▶ prerouting: to the host itself? drop ─▶ forward: to another sandbox? drop ─▶ postrouting: masquerade
//!                 └▶ input: drop
//!   to a sandbox   ─▶ forward: an answer? accept, else drop
//! ```
//!
//! The rules are the same for all sandboxes, so their number does not grow with them; what one sandbox may do is decided in its
//! own namespace ([`super::lease`]).

use super::TABLE;
use crate::nft::{Base, Comparison, Expression, Family, Hook, Priority, Rule, Transaction};
use crate::nft::{ESTABLISHED, RELATED};
use crate::plan::{LINK_PREFIX, NETWORK4, NETWORK6};

/// The chains that keep a host that forkd made a router from being one for others.
pub const FOREIGN4: &str = "foreign4";
pub const FOREIGN6: &str = "foreign6";

/// RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST, RTN_MULTICAST.
const NOT_ELSEWHERE: [u32; 4] = [2, 3, 4, 5];

/// Makes the table anew, whatever was in it.
///
/// `foreign4` and `foreign6` say that packets between links that do not belong to forkd are dropped: as they were when the host
/// did not forward.
pub fn table(foreign4: bool, foreign6: bool) -> Transaction {
    let base = |hook, priority| Base { hook, priority, drops: false, device: None };
    let from_sandbox = || Rule::new().from_links(Comparison::Equal, LINK_PREFIX);
    let to_sandbox = || Rule::new().to_links(Comparison::Equal, LINK_PREFIX);
    // A table that is not there cannot be deleted.
    let mut transaction = Transaction::new(Family::Inet, TABLE)
        .add_table()
        .delete_table()
        .add_table()
        // Before the host's own rules can send it to a container or another service of the host's.
        .add_base_chain("prerouting", &base(Hook::Prerouting, Priority::Raw))
        .add_base_chain("input", &base(Hook::Input, Priority::Filter))
        .add_base_chain("forward", &base(Hook::Forward, Priority::Filter))
        .add_base_chain("postrouting", &base(Hook::Postrouting, Priority::SourceNat));
    for kind in NOT_ELSEWHERE {
        transaction = transaction.add_rule("prerouting", &from_sandbox().to_type(kind).drop());
    }
    transaction = transaction
        .add_rule("input", &from_sandbox().drop())
        .add_rule("forward", &from_sandbox().to_links(Comparison::Equal, LINK_PREFIX).drop())
        .add_rule("forward", &to_sandbox().in_state(ESTABLISHED | RELATED).accept())
        .add_rule("forward", &to_sandbox().drop());
    for (network, prefix) in [(NETWORK4.0.into(), NETWORK4.1), (NETWORK6.0.into(), NETWORK6.1)] {
        let rule = Rule::new()
            .from_network(network, prefix)
            .to_links(Comparison::NotEqual, LINK_PREFIX)
            .then(Expression::Masquerade);
        transaction = transaction.add_rule("postrouting", &rule);
    }
    let others = || {
        Rule::new().from_links(Comparison::NotEqual, LINK_PREFIX).to_links(Comparison::NotEqual, LINK_PREFIX)
    };
    for (wanted, chain, rule) in
        [(foreign4, FOREIGN4, others().ipv4().drop()), (foreign6, FOREIGN6, others().ipv6().drop())]
    {
        if wanted {
            transaction = transaction
                .add_base_chain(chain, &base(Hook::Forward, Priority::Filter))
                .add_rule(chain, &rule);
        }
    }
    transaction
}
