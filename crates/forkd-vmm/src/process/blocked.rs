//! The last words of a process that made a system call which is not its to make: which one, and which thread.
//!
//! They are said in a signal handler, in whatever state the thread is: nothing is allocated and no lock is taken. So the message
//! is made beforehand, once for each stage, with a gap for what is not known yet.

#![expect(unsafe_code, reason = "a signal handler, and what the kernel leaves on its stack")]

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use forkd_proto::control::{Event, ExitReason, Message, Stage};
use vmm_sys_util::signal::register_signal_handler;

/// The control socket; -1 for none.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// The stage, as its place in [`STAGES`].
static STAGE: AtomicI32 = AtomicI32::new(0);
/// What comes before the gap and after it.
static MESSAGES: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();

const STAGES: [Stage; 7] =
    [Stage::Empty, Stage::Boot, Stage::Restore, Stage::Run, Stage::Freeze, Stage::Zygote, Stage::Persist];
const GAP: &str = "@gap@";
const MESSAGE_BYTES: usize = 512;
/// As if the signal had ended it.
const STATUS: c_int = 128 + libc::SIGSYS;

/// From now on such a call is told and ends the process.
pub fn install() {
    let messages = STAGES.into_iter().filter_map(|stage| {
        let event = Event::Exited { stage, reason: ExitReason::Error, detail: GAP.into() };
        let text = serde_json::to_string(&Message::Event(event)).ok()?;
        let (before, after) = text.split_once(GAP)?;
        Some((before.into(), after.into()))
    });
    // It is set once, here.
    let _ = MESSAGES.set(messages.collect());
    // It can only fail for a signal that does not exist.
    let _ = register_signal_handler(libc::SIGSYS, on_blocked);
}

pub fn adopt(socket: Option<i32>) {
    SOCKET.store(socket.unwrap_or(-1), Ordering::Relaxed);
}

pub fn enter(stage: Stage) {
    let place = STAGES.iter().position(|known| *known == stage).and_then(|place| place.try_into().ok());
    STAGE.store(place.unwrap_or(0), Ordering::Relaxed);
}

/// Ends the process without running anything else of it.
pub fn end(status: c_int) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(status) }
}

extern "C" fn on_blocked(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls this for SIGSYS of a filter, with both pointers to what it has put on the stack.
    let (call, request) = unsafe { what(info, context) };
    let mut message = Words { bytes: [0; MESSAGE_BYTES], len: 0 };
    let stage = usize::try_from(STAGE.load(Ordering::Relaxed)).unwrap_or(0);
    if let Some((before, after)) = MESSAGES.get().and_then(|messages| messages.get(stage)) {
        message.push(before);
        // What does not fit is left out.
        let _ = describe(&mut message, call, request);
        message.push(after);
        let socket = SOCKET.load(Ordering::Relaxed);
        // SAFETY: the bytes are valid, and the kernel refuses an invalid descriptor.
        unsafe {
            libc::send(
                socket,
                message.bytes.as_ptr().cast(),
                message.len,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
    }
    end(STATUS);
}

fn describe(words: &mut Words, call: i32, request: u64) -> fmt::Result {
    let thread = forkd_jail::role().map_or("a thread", forkd_jail::Role::name);
    let name = forkd_jail::call_name(call).unwrap_or("unknown");
    write!(words, "{thread} made the system call {name} ({call}), which is not allowed")?;
    // What these do is decided by their arguments, one of them for each.
    match i64::from(call) {
        libc::SYS_ioctl | libc::SYS_fcntl => write!(words, ": {request:#x}"),
        _ => Ok(()),
    }
}

/// The beginning of what the kernel says with SIGSYS.
#[repr(C)]
struct Blocked {
    signal: c_int,
    error: c_int,
    code: c_int,
    padding: c_int,
    address: *const c_void,
    call: c_int,
}

/// The number of the call, and its second argument.
///
/// # Safety
///
/// The pointers are those that the kernel gives to a handler of SIGSYS.
unsafe fn what(info: *const libc::siginfo_t, context: *const c_void) -> (i32, u64) {
    let register = usize::try_from(libc::REG_RSI).unwrap_or(0);
    // SAFETY: a siginfo is larger, and for SIGSYS begins like this.
    let call = unsafe { (*info.cast::<Blocked>()).call };
    // SAFETY: the context is a whole `ucontext_t`.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    (call, registers.get(register).copied().unwrap_or(0).cast_unsigned())
}

/// A message in the making.
struct Words {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
}

impl Words {
    fn push(&mut self, more: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.len).zip(more) {
            *place = *byte;
            self.len += 1;
        }
    }
}

impl Write for Words {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}
