//! What becomes of a question: pure, so that everything a guest may send can be tried.

use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RData};

use crate::policy::Policy;

/// An address is open for as long as its answer may be kept, but at least so long that it can be used; and no client keeps an
/// answer for longer than the longest.
const SHORTEST: Duration = Duration::from_secs(30);
const LONGEST: u32 = 3600;
/// Who asks at the last moment still gets through.
const GRACE: Duration = Duration::from_secs(5);
/// No answer opens more.
const MAX_ADDRESSES: usize = 64;
/// What fits into a datagram without being cut up on the way, and what a guest takes that says nothing.
const LARGE: u16 = 1232;
const SMALL: u16 = 512;

/// What to do with a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Nothing: it is no question.
    Ignore,
    /// Answer at once.
    Answer(Box<Message>),
    /// Ask upstream.
    Forward(Box<Question>),
}

/// A question that may be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    id: u16,
    query: Query,
    edns: bool,
    /// As small letters, without the dot at the end.
    name: String,
    /// What the guest can take in a datagram.
    pub datagram: usize,
}

/// What is sent to the guest, and what must be open before.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub message: Message,
    pub open: Vec<(IpAddr, Duration)>,
    /// The entries of the policy that are opened.
    pub entries: Vec<usize>,
}

/// Looks at what a guest has sent.
pub fn decide(bytes: &[u8], policy: &Policy) -> Decision {
    let Ok(asked) = Message::from_vec(bytes) else { return malformed(bytes) };
    if asked.metadata.message_type != MessageType::Query {
        return Decision::Ignore;
    }
    let id = asked.metadata.id;
    let refuse = |code| {
        let mut answer = Message::response(id, asked.metadata.op_code);
        answer.metadata.response_code = code;
        answer.metadata.recursion_available = true;
        answer.metadata.recursion_desired = asked.metadata.recursion_desired;
        answer.queries = asked.queries.clone();
        Decision::Answer(Box::new(answer))
    };
    if asked.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    let [query] = &asked.queries[..] else { return refuse(ResponseCode::FormErr) };
    if query.query_class() != DNSClass::IN {
        return refuse(ResponseCode::Refused);
    }
    let name = query.name().to_ascii().to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name).to_owned();
    if !policy.resolves(&name) {
        return refuse(ResponseCode::NXDomain);
    }
    let edns = asked.edns.as_ref();
    let datagram = edns.map_or(SMALL, |edns| edns.max_payload().clamp(SMALL, LARGE)).into();
    Decision::Forward(Box::new(Question { id, query: query.clone(), edns: edns.is_some(), name, datagram }))
}

/// Something with an id gets an answer with that id.
fn malformed(bytes: &[u8]) -> Decision {
    // Id, and the flag that makes an answer of a message.
    let Some([high, low, flags, ..]) = bytes.first_chunk::<12>() else { return Decision::Ignore };
    if flags & 0x80 != 0 {
        return Decision::Ignore;
    }
    let id = u16::from_be_bytes([*high, *low]);
    Decision::Answer(Box::new(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)))
}

impl Question {
    /// The question for the resolver upstream, with an id of its own.
    pub fn upstream(&self, id: u16) -> Message {
        let mut message = Message::new(id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.queries = vec![self.query.clone()];
        let mut edns = Edns::new();
        edns.set_max_payload(LARGE);
        message.set_edns(edns);
        message
    }

    /// Whether a message answers the question that was sent upstream with this id.
    pub fn is_answered_by(&self, message: &Message, id: u16) -> bool {
        message.metadata.id == id
            && message.metadata.message_type == MessageType::Response
            && message.queries.first() == Some(&self.query)
    }

    /// The answer for the guest.
    pub fn reply(&self, upstream: Message, policy: &Policy) -> Reply {
        let entries: Vec<usize> = policy.entries_of(&self.name).collect();
        let mut message = self.empty(upstream.metadata.response_code);
        let mut open = Vec::new();
        for mut record in upstream.answers {
            record.ttl = record.ttl.min(LONGEST);
            let address: Option<IpAddr> = match &record.data {
                RData::A(address) => Some(address.0.into()),
                RData::AAAA(address) => Some(address.0.into()),
                _ => None,
            };
            // What cannot be reached would only be waited for in vain, and says what the host's network looks like.
            if address.is_some_and(|address| !policy.may_open(address)) {
                continue;
            }
            if let Some(address) = address.filter(|_| !entries.is_empty()) {
                if open.len() == MAX_ADDRESSES {
                    continue;
                }
                let lifetime = Duration::from_secs(record.ttl.into()).max(SHORTEST) + GRACE;
                open.push((address, lifetime));
            }
            message.answers.push(record);
        }
        message.authorities = upstream.authorities;
        Reply { message, open, entries }
    }

    /// No upstream server has answered.
    pub fn failed(&self) -> Message {
        self.empty(ResponseCode::ServFail)
    }

    fn empty(&self, code: ResponseCode) -> Message {
        let mut message = Message::response(self.id, OpCode::Query);
        message.metadata.response_code = code;
        message.metadata.recursion_desired = true;
        message.metadata.recursion_available = true;
        message.queries = vec![self.query.clone()];
        if self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(LARGE);
            message.set_edns(edns);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::rdata::{A, CNAME};
    use hickory_proto::rr::{Name, Record, RecordType};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Egress, EgressEntry};

    fn list(targets: &[&str]) -> Policy {
        let entries = targets.iter().map(|to| EgressEntry { to: to.parse().unwrap(), ports: Vec::new() });
        Policy { egress: Egress::List(entries.collect()), bandwidth: None }
    }

    fn question(name: &str) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.queries = vec![Query::query(Name::from_ascii(name).unwrap(), RecordType::A)];
        message.to_vec().unwrap()
    }

    fn code(decision: Decision) -> Option<ResponseCode> {
        match decision {
            Decision::Answer(message) => {
                assert_eq!((message.metadata.id, message.metadata.message_type), (7, MessageType::Response));
                Some(message.metadata.response_code)
            }
            Decision::Forward(_) => None,
            Decision::Ignore => panic!("ignored"),
        }
    }

    #[test]
    fn only_allowed_names_are_asked_for() {
        let policy = list(&["*.example.com", "9.9.9.9"]);
        assert_eq!(code(decide(&question("A.example.COM."), &policy)), None);
        for name in ["example.com.", "evil.org.", "9.9.9.9.", ".", "example.com.evil.org."] {
            assert_eq!(code(decide(&question(name), &policy)), Some(ResponseCode::NXDomain), "{name}");
        }
        let deny = Policy { egress: Egress::Deny, bandwidth: None };
        assert_eq!(code(decide(&question("example.com."), &deny)), Some(ResponseCode::NXDomain));
        assert_eq!(code(decide(&question("example.com."), &Policy::default())), None);
        // Neither an answer nor rubbish is a question.
        let mut answer = question("a.example.com.");
        answer[2] |= 0x80;
        assert_eq!(decide(&answer, &policy), Decision::Ignore);
        assert_eq!(decide(b"short", &policy), Decision::Ignore);
        let mut broken = question("a.example.com.");
        broken.truncate(20);
        assert_eq!(code(decide(&broken, &policy)), Some(ResponseCode::FormErr));
    }

    #[test]
    fn answers_open_what_they_may() {
        let policy = list(&["*.example.com", "a.example.com", "other.org"]);
        let Decision::Forward(question) = decide(&question("a.example.com."), &policy) else { panic!() };
        let asked = question.upstream(99);
        let mut answer = asked.clone();
        answer.metadata.message_type = MessageType::Response;
        assert!(question.is_answered_by(&answer, 99));
        assert!(!question.is_answered_by(&answer, 98) && !question.is_answered_by(&asked, 99));
        let name = Name::from_ascii("a.example.com.").unwrap();
        let cdn = Name::from_ascii("cdn.net.").unwrap();
        let a = |octets: [u8; 4], ttl| Record::from_rdata(cdn.clone(), ttl, RData::A(A(octets.into())));
        answer.answers = vec![
            Record::from_rdata(name, 60, RData::CNAME(CNAME(cdn.clone()))),
            a([9, 9, 9, 9], 1),
            a([8, 8, 8, 8], 1_000_000),
            a([169, 254, 169, 254], 60),
            a([10, 0, 0, 1], 60),
        ];
        let reply = question.reply(answer.clone(), &policy);
        let seconds = Duration::from_secs;
        assert_eq!(reply.open, [([9, 9, 9, 9].into(), seconds(35)), ([8, 8, 8, 8].into(), seconds(3605))]);
        assert_eq!((reply.message.answers.len(), reply.entries), (3, vec![0, 1]));
        assert_eq!((reply.message.metadata.id, reply.message.answers[2].ttl), (7, 3600));
        // Nothing has to be opened where all of the internet is open.
        let reply = question.reply(answer, &Policy::default());
        assert_eq!((reply.open.len(), reply.message.answers.len()), (0, 3));
    }

    proptest! {
        #[test]
        fn no_question_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            decide(&bytes, &list(&["example.com"]));
        }

        #[test]
        fn broken_questions_neither(position in 0..31usize, byte in any::<u8>()) {
            let mut bytes = question("a.example.com.");
            let position = position % bytes.len();
            bytes[position] = byte;
            if let Decision::Forward(question) = decide(&bytes, &list(&["*.example.com"])) {
                prop_assert!(question.name.ends_with(".example.com"), "{}", question.name);
            }
        }
    }
}
