//! The serial console: a 16550 whose output goes into a capped log and whose input comes from a bounded buffer.

mod log;

pub use log::{CappedLog, MIN_LIMIT};

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vm_superio::serial::{NoEvents, SerialState};
use vm_superio::{Serial, Trigger};

use crate::virtio::transport::Interrupt;

/// The most input that waits for the guest to read it.
pub const MAX_INPUT: usize = 4096;

/// What the UART holds itself.
pub const FIFO: usize = 64;

/// Interrupts that can be enabled.
const INTERRUPT_ENABLE_BITS: u8 = 0x0f;
/// Nothing pending, output possible, input there, both.
const INTERRUPT_IDENTIFICATIONS: [u8; 4] = [1, 2, 4, 6];
/// The transmitter is always empty.
const LINE_IDLE: u8 = 0x60;
const LINE_DATA_READY: u8 = 0x01;

#[derive(Debug)]
struct Line(Arc<dyn Interrupt>);

impl Trigger for Line {
    type E = Infallible;

    fn trigger(&self) -> Result<(), Infallible> {
        self.0.trigger();
        Ok(())
    }
}

/// The serial port, which is the guest's console.
#[derive(Debug)]
pub struct SerialPort {
    uart: Serial<Line, NoEvents, CappedLog>,
    /// Input that the UART has no room for yet.
    input: VecDeque<u8>,
}

/// The serial port in saved state. The log belongs to the process, not to the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialPortState {
    pub baud_divisor_low: u8,
    pub baud_divisor_high: u8,
    pub interrupt_enable: u8,
    pub interrupt_identification: u8,
    pub line_control: u8,
    pub line_status: u8,
    pub modem_control: u8,
    pub modem_status: u8,
    pub scratch: u8,
    /// Input in the UART, the oldest first.
    pub received: Vec<u8>,
    /// Input behind that.
    pub input: Vec<u8>,
}

/// The saved state is not one that a serial port can be in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SerialPortError {
    #[error("the console has received {found} bytes; it holds {FIFO} at most")]
    Received { found: usize },
    #[error("{found} bytes of console input are queued; at most {MAX_INPUT} are possible")]
    Input { found: usize },
    #[error("console register {register} has the invalid value {value:#x}")]
    Register { register: &'static str, value: u8 },
}

impl SerialPort {
    pub fn new(interrupt: Arc<dyn Interrupt>, log: CappedLog) -> SerialPort {
        SerialPort { uart: Serial::new(Line(interrupt), log), input: VecDeque::new() }
    }

    /// Makes a serial port from saved state, which is untrusted. An interrupt that was pending is triggered again.
    pub fn restore(
        state: &SerialPortState,
        interrupt: Arc<dyn Interrupt>,
        log: CappedLog,
    ) -> Result<SerialPort, SerialPortError> {
        state.check()?;
        let registers = SerialState {
            baud_divisor_low: state.baud_divisor_low,
            baud_divisor_high: state.baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.received.clone(),
        };
        // The length of what was received is all that the crate checks.
        let uart = Serial::from_state(&registers, Line(interrupt), NoEvents, log);
        Ok(SerialPort {
            uart: uart.map_err(|_| SerialPortError::Received { found: state.received.len() })?,
            input: VecDeque::from(state.input.clone()),
        })
    }

    pub fn state(&self) -> SerialPortState {
        let state = self.uart.state();
        SerialPortState {
            baud_divisor_low: state.baud_divisor_low,
            baud_divisor_high: state.baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            received: state.in_buffer,
            input: self.input.iter().copied().collect(),
        }
    }

    /// The guest reads the register at this offset from the base port.
    pub fn read(&mut self, offset: u8) -> u8 {
        let value = self.uart.read(offset);
        self.pass_input_on();
        value
    }

    /// The guest writes the register at this offset from the base port.
    pub fn write(&mut self, offset: u8, value: u8) {
        // Neither the log nor the interrupt line can fail: the log counts what it loses.
        let _ = self.uart.write(offset, value);
        self.pass_input_on();
    }

    /// Takes as much input for the guest as there is room for, and returns the length.
    pub fn input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(MAX_INPUT - self.input.len());
        self.input.extend(&bytes[..taken]);
        self.pass_input_on();
        taken
    }

    /// How much input the UART has room for.
    pub fn room(&self) -> usize {
        if self.input.is_empty() { self.uart.fifo_capacity() } else { 0 }
    }

    pub fn log(&self) -> &CappedLog {
        self.uart.writer()
    }

    fn pass_input_on(&mut self) {
        if self.input.is_empty() || self.uart.fifo_capacity() == 0 {
            return;
        }
        // In loopback mode it takes nothing.
        if let Ok(taken) = self.uart.enqueue_raw_bytes(self.input.make_contiguous()) {
            self.input.drain(..taken);
        }
    }
}

impl SerialPortState {
    fn check(&self) -> Result<(), SerialPortError> {
        if self.received.len() > FIFO {
            return Err(SerialPortError::Received { found: self.received.len() });
        }
        if self.input.len() > MAX_INPUT {
            return Err(SerialPortError::Input { found: self.input.len() });
        }
        let ready = if self.received.is_empty() { 0 } else { LINE_DATA_READY };
        let good = [
            ("interrupt enable", self.interrupt_enable, self.interrupt_enable & !INTERRUPT_ENABLE_BITS == 0),
            (
                "interrupt identification",
                self.interrupt_identification,
                INTERRUPT_IDENTIFICATIONS.contains(&self.interrupt_identification),
            ),
            ("line status", self.line_status, self.line_status == LINE_IDLE | ready),
        ];
        match good.into_iter().find(|(_, _, good)| !good) {
            Some((register, value, _)) => Err(SerialPortError::Register { register, value }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::transport::mock::CountedInterrupt;
    use proptest::prelude::*;
    use std::io::{Read, Seek};

    const DATA: u8 = 0;
    const INTERRUPT_ENABLE: u8 = 1;
    const MODEM_CONTROL: u8 = 4;
    const LINE_STATUS: u8 = 5;

    fn log() -> CappedLog {
        CappedLog::new(tempfile::tempfile().unwrap(), MIN_LIMIT).unwrap()
    }

    fn serial() -> (SerialPort, Arc<CountedInterrupt>) {
        let interrupt = Arc::new(CountedInterrupt::default());
        (SerialPort::new(interrupt.clone(), log()), interrupt)
    }

    fn read_all(serial: &mut SerialPort) -> Vec<u8> {
        let mut bytes = Vec::new();
        while serial.read(LINE_STATUS) & LINE_DATA_READY != 0 {
            bytes.push(serial.read(DATA));
        }
        bytes
    }

    #[test]
    fn output_goes_into_the_log() {
        let file = tempfile::tempfile().unwrap();
        let log = CappedLog::new(file.try_clone().unwrap(), MIN_LIMIT).unwrap();
        let mut serial = SerialPort::new(Arc::new(CountedInterrupt::default()), log);
        for byte in b"login: " {
            serial.write(DATA, *byte);
        }
        let mut text = String::new();
        let mut file = file;
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "login: ");
    }

    #[test]
    fn input_arrives_in_order_and_is_bounded() {
        let (mut serial, interrupt) = serial();
        serial.write(INTERRUPT_ENABLE, 1);
        let typed: Vec<u8> = (0..10_000u32).map(|at| at.to_le_bytes()[0]).collect();
        // The buffer passes the first bytes on, and then has room for some more.
        let mut taken = serial.input(&typed);
        assert_eq!(taken, MAX_INPUT);
        assert_eq!(serial.room(), 0);
        taken += serial.input(&typed[taken..]);
        assert_eq!(taken, MAX_INPUT + FIFO);
        assert_eq!(serial.input(&typed[taken..]), 0);
        assert!(interrupt.count() > 0);
        assert!(read_all(&mut serial) == typed[..taken]);
        assert_eq!(serial.room(), FIFO);
        assert_eq!(serial.input(b"more"), 4);
        assert_eq!(read_all(&mut serial), b"more");
    }

    #[test]
    fn input_waits_while_the_line_loops_back() {
        let (mut serial, _) = serial();
        serial.write(MODEM_CONTROL, 0x10);
        assert_eq!(serial.input(b"x"), 1);
        assert_eq!(serial.room(), 0);
        assert_eq!(read_all(&mut serial), b"");
        serial.write(MODEM_CONTROL, 0x08);
        assert_eq!(read_all(&mut serial), b"x");
    }

    #[test]
    fn a_restored_port_has_its_registers_and_its_input() {
        let (mut serial, _) = serial();
        serial.write(INTERRUPT_ENABLE, 1);
        serial.input(&[b'a'; FIFO]);
        serial.input(b"end");
        let text = serde_json::to_string(&serial.state()).unwrap();
        let state: SerialPortState = serde_json::from_str(&text).unwrap();
        assert_eq!((state.received.len(), state.input.as_slice()), (FIFO, b"end".as_slice()));

        let interrupt = Arc::new(CountedInterrupt::default());
        let mut restored = SerialPort::restore(&state, interrupt.clone(), log()).unwrap();
        assert_eq!(restored.state(), state);
        assert_eq!(interrupt.count(), 1);
        let read = read_all(&mut restored);
        assert_eq!((read.len(), &read[FIFO..]), (FIFO + 3, b"end".as_slice()));
    }

    #[test]
    fn saved_state_with_one_wrong_field_is_refused() {
        let (serial, _) = serial();
        let good = serial.state();
        let broken = |change: &dyn Fn(&mut SerialPortState)| {
            let mut state = good.clone();
            change(&mut state);
            SerialPort::restore(&state, Arc::new(CountedInterrupt::default()), log()).unwrap_err()
        };
        let register = |name| move |error| matches!(error, SerialPortError::Register { register, .. } if register == name);
        assert!(register("interrupt enable")(broken(&|state| state.interrupt_enable = 0x10)));
        assert!(register("interrupt identification")(broken(&|state| {
            state.interrupt_identification = 3;
        })));
        assert!(register("line status")(broken(&|state| state.line_status = 0x61)));
        assert!(register("line status")(broken(&|state| state.received = vec![0])));
        assert_eq!(
            broken(&|state| state.received = vec![0; FIFO + 1]),
            SerialPortError::Received { found: FIFO + 1 }
        );
        assert_eq!(
            broken(&|state| state.input = vec![0; MAX_INPUT + 1]),
            SerialPortError::Input { found: MAX_INPUT + 1 }
        );
    }

    proptest! {
        /// Whatever the guest does to the registers, the state can be restored.
        #[test]
        fn any_state_that_a_guest_reaches_is_a_good_one(
            steps in proptest::collection::vec((any::<bool>(), 0u8..9, any::<u8>()), 0..200)
        ) {
            let (mut serial, _) = serial();
            for (write, offset, value) in steps {
                if write {
                    serial.write(offset, value);
                } else {
                    serial.read(offset);
                    serial.input(&[value; 3]);
                }
            }
            let state = serial.state();
            let restored = SerialPort::restore(&state, Arc::new(CountedInterrupt::default()), log()).unwrap();
            prop_assert_eq!(restored.state(), state);
        }
    }
}
