//! The first line of a client: `CONNECT <port>\n`, read without touching what follows it.

/// More than any port needs: `CONNECT 4294967295\n` has 19 bytes.
pub(super) const MAX_LINE: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Greeting {
    Incomplete,
    Port(u32),
    Malformed,
}

#[derive(Debug, Default)]
pub(super) struct GreetingLine {
    line: Vec<u8>,
}

impl GreetingLine {
    /// Takes bytes up to the end of the line and says how many that were.
    pub fn take(&mut self, bytes: &[u8]) -> (usize, Greeting) {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let taken = end.map_or(bytes.len(), |at| at + 1);
        if self.line.len() + taken > MAX_LINE {
            return (taken, Greeting::Malformed);
        }
        self.line.extend_from_slice(&bytes[..taken]);
        match end {
            None if self.line.len() == MAX_LINE => (taken, Greeting::Malformed),
            None => (taken, Greeting::Incomplete),
            Some(_) => (taken, parse(&self.line)),
        }
    }
}

fn parse(line: &[u8]) -> Greeting {
    let port = line
        .strip_prefix(b"CONNECT ")
        .and_then(|rest| rest.strip_suffix(b"\n"))
        // The standard parser would take a plus sign.
        .filter(|digits| digits.iter().all(u8::is_ascii_digit))
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse().ok());
    port.map_or(Greeting::Malformed, Greeting::Port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_may_come_in_pieces() {
        let mut line = GreetingLine::default();
        assert_eq!(line.take(b"CONN"), (4, Greeting::Incomplete));
        assert_eq!(line.take(b"ECT 49"), (6, Greeting::Incomplete));
        assert_eq!(line.take(b"983\nGET / HTTP"), (4, Greeting::Port(49983)));
    }

    #[test]
    fn other_lines_are_malformed() {
        for bad in [
            "\n",
            "connect 1\n",
            "CONNECT\n",
            "CONNECT \n",
            "CONNECT 4294967296\n",
            "CONNECT +1\n",
            "CONNECT -1\n",
            "CONNECT 1 \n",
            "CONNECT  1\n",
            "CONNECT 1\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "CONNECT 00000000000000000000000000000001\n",
        ] {
            assert_eq!(GreetingLine::default().take(bad.as_bytes()).1, Greeting::Malformed, "{bad:?}");
        }
        let mut endless = GreetingLine::default();
        let answers: Vec<Greeting> = (0..MAX_LINE).map(|_| endless.take(b"C").1).collect();
        assert_eq!(answers.last(), Some(&Greeting::Malformed));
    }

    proptest! {
        #[test]
        fn every_port_is_understood_however_it_is_cut(port: u32, cut in 0usize..19) {
            let text = format!("CONNECT {port}\n");
            let (first, second) = text.split_at(cut.min(text.len() - 1));
            let mut line = GreetingLine::default();
            prop_assert_eq!(line.take(first.as_bytes()).1, Greeting::Incomplete);
            prop_assert_eq!(line.take(second.as_bytes()).1, Greeting::Port(port));
        }
    }
}
