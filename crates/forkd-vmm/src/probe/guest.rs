//! The probe's guest: a page of 64-bit code that executes what a stock kernel needs and reports each step on a port.

#![expect(
    unsafe_code,
    reason = "guest code is assembled here and its bytes are read; the host's loop and rdtsc are one instruction each"
)]

use std::fmt;

/// The port that the guest reports on; the byte written is 1 for a right result and 0 for a wrong one, plus twice the
/// number of the step.
pub const REPORT_PORT: u16 = 0x10;

/// Passes of the timed loop between two reports: enough that the exit itself does not count.
pub const LOOP_ITERATIONS: u64 = 1 << 16;

/// Where in guest memory the code may write: 16 byte aligned, as cmpxchg16b and movdqa ask.
pub const SCRATCH: u64 = 0x8000;

/// What the guest reports, in this order; the loop repeats for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    LongMode = 1,
    Cmpxchg16b = 2,
    Sse = 3,
    Loop = 4,
}

impl Step {
    /// Decodes a report: the step, and whether its result was right.
    pub fn decode(byte: u8) -> Option<(Step, bool)> {
        let step = match byte >> 1 {
            1 => Step::LongMode,
            2 => Step::Cmpxchg16b,
            3 => Step::Sse,
            4 => Step::Loop,
            _ => return None,
        };
        Some((step, byte & 1 == 1))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::LongMode => "64-bit arithmetic",
            Step::Cmpxchg16b => "cmpxchg16b",
            Step::Sse => "an SSE instruction",
            Step::Loop => "a plain loop",
        })
    }
}

// The code is data to this process: it lies in .rodata and is copied into guest memory. It is position-independent.
std::arch::global_asm!(
    r#"
    .pushsection .rodata.forkd_probe_guest, "a", @progbits
    .globl forkd_probe_guest_begin
    .hidden forkd_probe_guest_begin
    .globl forkd_probe_guest_end
    .hidden forkd_probe_guest_end
forkd_probe_guest_begin:
    mov rax, 0x123456789abcdef0
    mov rbx, rax
    bswap rbx
    bswap rbx
    cmp rax, rbx
    sete al
    add al, {long_mode} * 2
    out {port}, al

    mov rdi, {scratch}
    xor eax, eax
    xor edx, edx
    mov [rdi], rax
    mov [rdi + 8], rdx
    mov rbx, 0x1111
    mov rcx, 0x2222
    lock cmpxchg16b [rdi]
    setz al
    cmp qword ptr [rdi + 8], 0x2222
    sete bl
    and al, bl
    add al, {cmpxchg16b} * 2
    out {port}, al

    movdqa xmm0, [rdi]
    paddq xmm0, xmm0
    movdqa [rdi + 16], xmm0
    cmp qword ptr [rdi + 24], 0x4444
    sete al
    add al, {sse} * 2
    out {port}, al

2:  mov rcx, {iterations}
3:  dec rcx
    jnz 3b
    mov al, {loop_} * 2 + 1
    out {port}, al
    jmp 2b
forkd_probe_guest_end:
    .popsection
    "#,
    port = const REPORT_PORT,
    scratch = const SCRATCH,
    iterations = const LOOP_ITERATIONS,
    long_mode = const Step::LongMode as u8,
    cmpxchg16b = const Step::Cmpxchg16b as u8,
    sse = const Step::Sse as u8,
    loop_ = const Step::Loop as u8,
);

unsafe extern "C" {
    static forkd_probe_guest_begin: u8;
    static forkd_probe_guest_end: u8;
}

/// The guest's code.
pub fn code() -> &'static [u8] {
    let begin = &raw const forkd_probe_guest_begin;
    let end = &raw const forkd_probe_guest_end;
    // SAFETY: both symbols bound one contiguous run of initialised, read-only bytes that the assembler laid out above,
    // and they live as long as the program.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// Runs the guest's loop in this process, for comparison.
pub fn run_loop_on_host(iterations: u64) {
    // SAFETY: counts a register down to zero; touches neither memory nor the stack.
    unsafe {
        std::arch::asm!("2: dec {count}", "jnz 2b", count = inout(reg) iterations.max(1) => _, options(nomem, nostack));
    }
}

/// The time stamp counter.
pub fn tsc() -> u64 {
    // SAFETY: rdtsc is there on every x86-64 CPU, and Linux leaves it open to user code unless PR_SET_TSC forbids it,
    // which nothing in this process does.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_decode() {
        assert_eq!(Step::decode(0b101), Some((Step::Cmpxchg16b, true)));
        assert_eq!(Step::decode(0b110), Some((Step::Sse, false)));
        assert_eq!(Step::decode(0), None);
        assert_eq!(Step::decode(0xff), None);
    }

    #[test]
    fn the_code_fits_a_page_and_begins_where_it_should() {
        assert!(code().len() < 4096);
        // movabs rax, imm64
        assert_eq!(code()[..2], [0x48, 0xb8]);
    }
}
