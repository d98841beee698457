//! The tiny guest: a page of 64-bit code that takes commands from its mailbox, wrapped as an ELF kernel.

#![expect(unsafe_code, reason = "guest code is assembled here and its bytes are read")]

/// Where the kernel is loaded.
const LOAD_ADDRESS: u64 = 0x10_0000;
/// The mailbox, as `forkd-vmm` has it.
const MAILBOX_PORT: u16 = 0x500;
const MAILBOX: u32 = 0x6000;
/// The guest's counter, and its first page for anything else.
const COUNTER: u32 = 0x8000;
pub const FREE_MEMORY: u64 = 0x20_0000;

/// What the guest can be told to do. Two arguments and a result each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Order {
    /// Adds the first argument to the counter; the result is the sum.
    Add = 0,
    /// Writes the counter to the second argument's number of pages from the address in the first; the result is the number.
    Dirty = 1,
    /// The result is the eight bytes at the address in the first argument.
    Read = 2,
    /// Writes the second argument to the address in the first.
    Write = 3,
    /// Switches the machine off.
    PowerOff = 4,
    /// Faults three times.
    Crash = 5,
    /// Puts both arguments into the vector register xmm7; the result is the sum of what was there before.
    Vector = 6,
}

std::arch::global_asm!(
    r#"
    .pushsection .rodata.forkd_tiny_guest, "a", @progbits
    .globl forkd_tiny_guest_begin
    .hidden forkd_tiny_guest_begin
    .globl forkd_tiny_guest_end
    .hidden forkd_tiny_guest_end
forkd_tiny_guest_begin:
    mov rax, cr4
    or rax, 0x600           // OSFXSR, OSXMMEXCPT: vector instructions
    mov cr4, rax
    mov dx, {port}
2:  in eax, dx
    test al, 1
    jz 2b
    mov edi, {mailbox}
    mov rax, [rdi]
    mov rbx, [rdi + 8]
    mov rcx, [rdi + 16]
    mov esi, {counter}
    cmp rax, 0
    je 10f
    cmp rax, 1
    je 11f
    cmp rax, 2
    je 12f
    cmp rax, 3
    je 13f
    cmp rax, 4
    je 14f
    cmp rax, 5
    je 15f
    cmp rax, 6
    je 16f
    mov rax, -1
3:  mov [rdi + 24], rax
    out dx, eax
    jmp 2b
10: add [rsi], rbx
    mov rax, [rsi]
    jmp 3b
11: mov r8, rcx
    mov r9, [rsi]
4:  test rcx, rcx
    jz 5f
    mov [rbx], r9
    add rbx, 4096
    dec rcx
    jmp 4b
5:  mov rax, r8
    jmp 3b
12: mov rax, [rbx]
    jmp 3b
13: mov [rbx], rcx
    mov rax, rcx
    jmp 3b
14: mov dx, 0x600
    mov al, 0x34
    out dx, al
6:  hlt
    jmp 6b
15: sub rsp, rsp
    lidt [rsp]
    ud2
16: movdqu [rsi + 16], xmm7
    movdqu xmm7, [rdi + 8]
    mov rax, [rsi + 16]
    add rax, [rsi + 24]
    jmp 3b
forkd_tiny_guest_end:
    .popsection
    "#,
    port = const MAILBOX_PORT,
    mailbox = const MAILBOX,
    counter = const COUNTER,
);

unsafe extern "C" {
    static forkd_tiny_guest_begin: u8;
    static forkd_tiny_guest_end: u8;
}

fn code() -> &'static [u8] {
    let begin = &raw const forkd_tiny_guest_begin;
    let end = &raw const forkd_tiny_guest_end;
    // SAFETY: both symbols bound one contiguous run of initialised, read-only bytes that the assembler laid out above,
    // and they live as long as the program.
    unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// The guest as an ELF file: one segment, entered at its beginning.
pub fn elf() -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
    let code = code();
    let mut elf = Vec::new();
    elf.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    elf.extend_from_slice(&2u16.to_le_bytes()); // an executable
    elf.extend_from_slice(&62u16.to_le_bytes()); // for x86-64
    elf.extend_from_slice(&1u32.to_le_bytes());
    elf.extend_from_slice(&LOAD_ADDRESS.to_le_bytes()); // entry
    elf.extend_from_slice(&64u64.to_le_bytes()); // program headers
    elf.extend_from_slice(&0u64.to_le_bytes()); // no sections
    elf.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        elf.extend_from_slice(&half.to_le_bytes());
    }
    elf.extend_from_slice(&1u32.to_le_bytes()); // PT_LOAD
    elf.extend_from_slice(&7u32.to_le_bytes()); // read, write, execute
    for word in [HEADERS, LOAD_ADDRESS, LOAD_ADDRESS, code.len() as u64, code.len() as u64, 4096] {
        elf.extend_from_slice(&word.to_le_bytes());
    }
    elf.extend_from_slice(code);
    elf
}
