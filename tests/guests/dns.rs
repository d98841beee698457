//! A resolver that knows two names, both at the same addresses. For every other question it says that there is no such name.

use std::io;
use std::net::UdpSocket;

const NAMES: [&str; 2] = ["good.example.com", "other.example.org"];
const ADDRESS: [u8; 4] = [9, 9, 9, 9];
/// 2a00:9::9.
const ADDRESS6: [u8; 16] = [0x2a, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

fn main() -> io::Result<()> {
    // Also for IPv4.
    let socket = UdpSocket::bind("[::]:53")?;
    let mut buffer = [0; 1500];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        if let Some(answer) = buffer.get(..length).and_then(answer) {
            socket.send_to(&answer, from)?;
        }
    }
}

fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let mut rest = question.get(12..)?;
    let mut labels = Vec::new();
    loop {
        let (length, behind) = rest.split_first()?;
        rest = behind;
        if *length == 0 {
            break;
        }
        let (label, behind) = rest.split_at_checked((*length).into())?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        rest = behind;
    }
    let kind = rest.get(1)?;
    let asked = question.get(12..question.len() - rest.len() + 4)?;
    let known = NAMES.contains(&labels.join(".").as_str());
    let address: &[u8] = match (known, kind) {
        (true, 1) => &ADDRESS,
        (true, 28) => &ADDRESS6,
        _ => &[],
    };
    let (count, code) = (u8::from(!address.is_empty()), if known { 0 } else { 3 });
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(asked);
    if count > 0 {
        // The name is the question's; a minute.
        answer.extend([0xc0, 12, 0, *kind, 0, 1, 0, 0, 0, 60, 0, u8::try_from(address.len()).ok()?]);
        answer.extend(address);
    }
    Some(answer)
}
