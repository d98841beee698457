//! What a fuzzer's input says: steps of a driver and of the host, one after another.
//!
//! Every input is a script. A number that is too large is used modulo what there is, and a step that is cut off ends the
//! script.

/// A step. Guest addresses are used as they are: most of them are not in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes the register of this number, the offset divided by 4.
    Register {
        register: u8,
        value: u32,
    },
    /// Writes and reads back at any offset and in any width.
    Access {
        offset: u16,
        bytes: Vec<u8>,
    },
    /// Writes guest memory.
    Memory {
        address: u32,
        bytes: Vec<u8>,
    },
    /// Writes a descriptor into the table that the setup has given to a queue.
    Descriptor {
        queue: u8,
        index: u8,
        address: u32,
        length: u32,
        flags: u8,
        next: u8,
    },
    /// Puts a chain into the available ring of a queue.
    Offer {
        queue: u8,
        head: u16,
    },
    Notify {
        queue: u8,
    },
    /// One of the descriptors that the device waits for is ready, or so it seems.
    Ready {
        event: u8,
    },
    /// A token that the device may not have given.
    Token {
        token: u32,
    },
    /// Something that only this device's host does.
    Host {
        action: u8,
        bytes: Vec<u8>,
    },
    /// The VM is saved and restored.
    Restore,
    /// The VM is restored from state in which someone has changed a number.
    Tamper {
        field: u8,
        value: u64,
    },
    Kick,
    ConfigChanged,
}

impl Step {
    /// Takes the next step of a script. None at its end.
    pub fn decode(script: &mut &[u8]) -> Option<Step> {
        let step = match byte(script)? % 13 {
            0 => Step::Register { register: byte(script)?, value: word(script)? },
            1 => Step::Access { offset: half(script)?, bytes: some(script)? },
            2 => Step::Memory { address: word(script)?, bytes: some(script)? },
            3 => Step::Descriptor {
                queue: byte(script)?,
                index: byte(script)?,
                address: word(script)?,
                length: word(script)?,
                flags: byte(script)?,
                next: byte(script)?,
            },
            4 => Step::Offer { queue: byte(script)?, head: half(script)? },
            5 => Step::Notify { queue: byte(script)? },
            6 => Step::Ready { event: byte(script)? },
            7 => Step::Token { token: word(script)? },
            8 => Step::Host { action: byte(script)?, bytes: some(script)? },
            9 => Step::Restore,
            10 => Step::Tamper { field: byte(script)?, value: u64::from_le_bytes(array(script)?) },
            11 => Step::Kick,
            _ => Step::ConfigChanged,
        };
        Some(step)
    }

    /// Writes the step, for a seed. Bytes beyond 255 do not fit.
    pub fn encode(&self, script: &mut Vec<u8>) {
        let mut put = |bytes: &[u8]| script.extend_from_slice(bytes);
        let length = |bytes: &[u8]| [u8::try_from(bytes.len()).unwrap()];
        match self {
            Step::Register { register, value } => {
                put(&[0, *register]);
                put(&value.to_le_bytes());
            }
            Step::Access { offset, bytes } => {
                put(&[1]);
                put(&offset.to_le_bytes());
                put(&length(bytes));
                put(bytes);
            }
            Step::Memory { address, bytes } => {
                put(&[2]);
                put(&address.to_le_bytes());
                put(&length(bytes));
                put(bytes);
            }
            Step::Descriptor { queue, index, address, length, flags, next } => {
                put(&[3, *queue, *index]);
                put(&address.to_le_bytes());
                put(&length.to_le_bytes());
                put(&[*flags, *next]);
            }
            Step::Offer { queue, head } => {
                put(&[4, *queue]);
                put(&head.to_le_bytes());
            }
            Step::Notify { queue } => put(&[5, *queue]),
            Step::Ready { event } => put(&[6, *event]),
            Step::Token { token } => {
                put(&[7]);
                put(&token.to_le_bytes());
            }
            Step::Host { action, bytes } => {
                put(&[8, *action]);
                put(&length(bytes));
                put(bytes);
            }
            Step::Restore => put(&[9]),
            Step::Tamper { field, value } => {
                put(&[10, *field]);
                put(&value.to_le_bytes());
            }
            Step::Kick => put(&[11]),
            Step::ConfigChanged => put(&[12]),
        }
    }
}

fn array<const N: usize>(script: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, rest) = script.split_first_chunk()?;
    *script = rest;
    Some(*bytes)
}

/// The next byte of a script.
pub fn byte(script: &mut &[u8]) -> Option<u8> {
    Some(array::<1>(script)?[0])
}

fn half(script: &mut &[u8]) -> Option<u16> {
    array(script).map(u16::from_le_bytes)
}

fn word(script: &mut &[u8]) -> Option<u32> {
    array(script).map(u32::from_le_bytes)
}

/// As many bytes as the next byte says, or all that are left.
pub fn some(script: &mut &[u8]) -> Option<Vec<u8>> {
    let length = usize::from(byte(script)?);
    let (bytes, rest) = script.split_at(length.min(script.len()));
    *script = rest;
    Some(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let steps = [
            Step::Register { register: 28, value: 0x1234_5678 },
            Step::Access { offset: 0x101, bytes: vec![1, 2, 3] },
            Step::Memory { address: 0x4_0000, bytes: vec![9; 255] },
            Step::Descriptor { queue: 1, index: 2, address: 3, length: 4, flags: 5, next: 6 },
            Step::Offer { queue: 1, head: 300 },
            Step::Notify { queue: 2 },
            Step::Ready { event: 1 },
            Step::Token { token: 1 << 30 },
            Step::Host { action: 3, bytes: b"CONNECT 1\n".to_vec() },
            Step::Restore,
            Step::Tamper { field: 4, value: u64::MAX },
            Step::Kick,
            Step::ConfigChanged,
        ];
        let mut script = Vec::new();
        steps.iter().for_each(|step| step.encode(&mut script));
        let mut rest = &script[..];
        for step in steps {
            assert_eq!(Step::decode(&mut rest), Some(step));
        }
        assert_eq!(Step::decode(&mut rest), None);
    }
}
