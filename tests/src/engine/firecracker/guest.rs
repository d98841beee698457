//! A guest without an agent: it writes the warm pages, says so on its serial port, and halts for good.

#![expect(unsafe_code, reason = "guest code is assembled here and its bytes are read")]

use crate::engine::guest::{FREE_MEMORY, wrap};

/// What the guest says when the pages are written. Firecracker hands it on to its own standard output, forkd to the console's log.
pub const WARM: &str = "forkd: warm";

std::arch::global_asm!(
    r#"
    .pushsection .rodata.forkd_warm_guest, "a", @progbits
    .globl forkd_warm_guest_begin
    .hidden forkd_warm_guest_begin
    .globl forkd_warm_guest_end
    .hidden forkd_warm_guest_end
forkd_warm_guest_begin:
    mov rcx, [rip + forkd_warm_guest_end]       // the number of pages comes after the code
    mov ebx, {free_memory}
    mov eax, 1
2:  test rcx, rcx
    jz 3f
    mov [rbx], rax
    add rbx, 4096
    dec rcx
    jmp 2b
3:  lea rsi, [rip + forkd_warm_guest_end + 8]   // after that what to say, up to a zero
    mov dx, {serial_port}
4:  mov al, [rsi]
    test al, al
    jz 5f
    out dx, al
    inc rsi
    jmp 4b
5:  cli
6:  hlt
    jmp 6b
forkd_warm_guest_end:
    .popsection
    "#,
    free_memory = const FREE_MEMORY,
    serial_port = const 0x3f8,
);

unsafe extern "C" {
    static forkd_warm_guest_begin: u8;
    static forkd_warm_guest_end: u8;
}

fn code() -> &'static [u8] {
    let begin = &raw const forkd_warm_guest_begin;
    let end = &raw const forkd_warm_guest_end;
    // SAFETY: both symbols bound one contiguous run of initialised, read-only bytes that the assembler laid out above,
    // and they live as long as the program.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// The guest as an ELF file, for this many warm pages.
pub fn elf(warm_pages: u64) -> Vec<u8> {
    let mut image = code().to_vec();
    image.extend_from_slice(&warm_pages.to_le_bytes());
    image.extend_from_slice(WARM.as_bytes());
    image.extend_from_slice(b"\n\0");
    wrap(&image)
}
