//! The tiny guest: a page of 64-bit code that takes commands from its mailbox, wrapped as an ELF kernel.

#![expect(unsafe_code, reason = "guest code is assembled here and its bytes are read")]
#![expect(bad_asm_style, reason = "the difference of two labels can be an operand only in the other syntax")]

/// Where the kernel is loaded.
pub(super) const LOAD_ADDRESS: u64 = 0x10_0000;
/// The mailbox, as `forkd-vmm` has it.
const MAILBOX_PORT: u16 = 0x500;
const MAILBOX: u32 = 0x6000;
/// The guest's counter, and its first page for anything else.
const COUNTER: u32 = 0x8000;
pub const FREE_MEMORY: u64 = 0x20_0000;
/// Where the other vCPUs write: for number n at n * 16 KiB the first of a pair, at + 8 KiB the second, at + 4 KiB how often
/// they did not agree.
const PAIRS: u32 = 0x18_0000;

/// The first of each disk's registers, as `forkd-vmm` has them.
pub(super) const DISKS: [u32; 2] = [0xd000_0000, 0xd000_4000];
/// The memory of the first disk's driver, a page each: descriptors, available ring, used ring, header and status of a request, its
/// block, the number of the vCPU that has the disk, a stack. That of the second disk's is [`DRIVER_BYTES`] behind it.
const DRIVER: u32 = 0x1c_0000;
const DRIVER_BYTES: u32 = 0x8000;
/// Where the two blocks of the pair on a disk are, in bytes. The map of a disk's layer has them on different pages.
pub const DISK_PAIR: [u32; 2] = [0x1000, 0x500_0000];

/// The addresses of a vCPU's pair, and of its count of disagreements.
pub fn pair(vcpu: u8) -> [u64; 3] {
    let base = u64::from(PAIRS) + (u64::from(vcpu) << 14);
    [base, base + 0x2000, base + 0x1000]
}

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
    /// Starts the other vCPUs. Each writes the same growing number to two pages for ever, one after the other, and before
    /// each round looks whether both pages and its register agree: they do not after a branch that tore them apart.
    ///
    /// The vCPU whose number is the first argument (0: none) has the first disk, that of the second argument the second. Between
    /// the pages it writes its number to two blocks of its disk, and before each round it reads them back: they must agree with
    /// the rest.
    StartOthers = 7,
    /// Puts both arguments into the vector register xmm7; the result is the sum of what was there before.
    Vector = 6,
    /// Writes the byte in the second argument to the port in the first.
    Out = 20,
    /// The result is a byte from the port in the first argument.
    In = 21,
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
    cmp rax, 7
    je 17f
    cmp rax, 20
    je 27f
    cmp rax, 21
    je 28f
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
27: mov edx, ebx
    mov eax, ecx
    out dx, al
    mov dx, {port}
    jmp 3b
28: mov edx, ebx
    xor eax, eax
    in al, dx
    mov dx, {port}
    jmp 3b

    // Starts the other vCPUs: their first code to a page below 1 MiB, then INIT and SIPI to all but this one.
17:
    mov r8, rdi
    mov eax, {driver}
    mov [rax + 0x5000], rbx
    mov [rax + 0x5000 + {driver_bytes}], rcx
    lea rsi, [rip + 20f]
    mov edi, {first_page}
    .att_syntax prefix
    movl $(21f - 20f), %ecx
    movl $(23f - 20f), %edx
    .intel_syntax noprefix
    cld
    rep movsb
    lea rax, [rip + 22f]
    mov [rdx + {first_page}], eax
    mov dx, {port}
    mov ebx, {local_apic}
    mov dword ptr [rbx + 0xf0], 0x1ff       // switch the local APIC on
    mov dword ptr [rbx + 0x300], 0xc4500    // INIT
    mov ecx, 100000
18: dec ecx
    jnz 18b
    mov dword ptr [rbx + 0x300], 0xc4600 + {first_page} / 4096    // SIPI
    mov rdi, r8
    xor eax, eax
    jmp 3b

    // Copied to {first_page}: from 16-bit mode to 64-bit mode with the first vCPU's tables.
    .code16
20: cli
    mov eax, 0x620                          // PAE, OSFXSR, OSXMMEXCPT
    mov cr4, eax
    mov eax, {page_tables}
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100                           // long mode
    wrmsr
    .att_syntax prefix
    movw $(24f - 20b), %bx
    .intel_syntax noprefix
    lgdt cs:[bx]
    mov eax, 0x80010031                     // paging, write protection, native errors, protection
    mov cr0, eax
    .byte 0x66, 0xea                        // far jump to the code segment of 64-bit mode
23: .long 0
    .word 0x10
24: .word 31
    .long {gdt}
21:
    .code64
22: mov ebx, {local_apic}
    mov ebx, [rbx + 0x20]
    shr ebx, 24                             // this vCPU's number
    mov ecx, ebx
    shl rbx, 14
    add rbx, {pairs}
    mov esi, {driver}
    mov ebp, {disk}
    cmp rcx, [rsi + 0x5000]
    je 30f
    add esi, {driver_bytes}
    mov ebp, {second_disk}
    cmp rcx, [rsi + 0x5000]
    je 30f
    xor eax, eax
25: cmp [rbx], rax
    jne 26f
    cmp [rbx + 0x2000], rax
    jne 26f
    inc rax
    mov [rbx], rax
    mov [rbx + 0x2000], rax
    jmp 25b
26: inc qword ptr [rbx + 0x1000]            // torn
    mov rax, [rbx]
    mov [rbx + 0x2000], rax
    jmp 25b

    // A vCPU with a disk. First its driver: rbp has the registers, rsi the memory, r10 how many requests there were.
30: lea rsp, [rsi + 0x7000]
    mov dword ptr [rbp + 0x70], 0           // status: reset
    mov dword ptr [rbp + 0x70], 3           // acknowledge, driver
    mov dword ptr [rbp + 0x24], 0
    mov dword ptr [rbp + 0x20], 0x200       // can flush, so that not every write is flushed
    mov dword ptr [rbp + 0x24], 1
    mov dword ptr [rbp + 0x20], 1           // version 1
    mov dword ptr [rbp + 0x70], 0xb         // features are good
    mov dword ptr [rbp + 0x30], 0           // queue 0
    mov dword ptr [rbp + 0x38], 8           // has eight places
    mov [rbp + 0x80], esi
    mov dword ptr [rbp + 0x84], 0
    lea eax, [rsi + 0x1000]
    mov [rbp + 0x90], eax
    mov dword ptr [rbp + 0x94], 0
    lea eax, [rsi + 0x2000]
    mov [rbp + 0xa0], eax
    mov dword ptr [rbp + 0xa4], 0
    mov dword ptr [rbp + 0x44], 1           // the queue is ready
    mov dword ptr [rbp + 0x70], 0xf         // and so is the driver
    // One chain for all requests: header, block, status. The available ring's places all name its first descriptor, 0.
    lea rax, [rsi + 0x3000]
    mov [rsi], rax
    mov dword ptr [rsi + 8], 16
    mov dword ptr [rsi + 12], 0x10001       // then 1
    lea rax, [rsi + 0x4000]
    mov [rsi + 16], rax
    mov dword ptr [rsi + 24], 4096
    lea rax, [rsi + 0x3010]
    mov [rsi + 32], rax
    mov dword ptr [rsi + 40], 1
    mov dword ptr [rsi + 44], 2             // the device writes it
    mov word ptr [rsi + 0x1000], 1          // no interrupts
    xor r10d, r10d

    // The rounds; r8 has the number.
    xor r8d, r8d
31: cmp [rbx], r8
    jne 32f
    cmp [rbx + 0x2000], r8
    jne 32f
    mov eax, [rbp + 0x70]
    cmp eax, 0xf                            // the device is as it was set up
    je 33f
32: inc qword ptr [rbx + 0x1000]            // torn
33: mov r9, -1                              // what is in the block if the device writes nothing to it
    mov edi, {first_block} / 512
    xor eax, eax                            // read
    call 34f
    mov edi, {second_block} / 512
    call 34f
    inc r8
    mov [rbx], r8
    mov r9, r8
    mov edi, {first_block} / 512
    mov eax, 1                              // write
    call 34f
    mov edi, {second_block} / 512
    call 34f
    mov [rbx + 0x2000], r8
    jmp 31b

    // A request: r9 into each sector of the block, eax to be done at sector edi; afterwards each sector has the number.
34: xor ecx, ecx
35: mov [rsi + rcx + 0x4000], r9
    add ecx, 512
    cmp ecx, 4096
    jb 35b
    mov ecx, 0x20003                        // then 2; the device writes the block,
    sub ecx, eax
    sub ecx, eax                            // or reads it
    mov [rsi + 28], ecx
    mov [rsi + 0x3000], eax
    mov [rsi + 0x3008], rdi
    mov byte ptr [rsi + 0x3010], 0xff
    inc r10d
    mov [rsi + 0x1002], r10w
    mov dword ptr [rbp + 0x50], 0           // notify queue 0
36: pause
    cmp [rsi + 0x2002], r10w                // done once, not more often
    jne 36b
    cmp byte ptr [rsi + 0x3010], 0
    jne 38f
    xor ecx, ecx
37: cmp [rsi + rcx + 0x4000], r8
    jne 38f
    add ecx, 512
    cmp ecx, 4096
    jb 37b
    ret
38: inc qword ptr [rbx + 0x1000]            // torn
    ret
forkd_tiny_guest_end:
    .popsection
    "#,
    port = const MAILBOX_PORT,
    first_page = const 0x1_0000,
    local_apic = const 0xfee0_0000u32,
    page_tables = const 0x9000,
    gdt = const 0x500,
    pairs = const PAIRS,
    disk = const DISKS[0],
    second_disk = const DISKS[1],
    driver = const DRIVER,
    driver_bytes = const DRIVER_BYTES,
    first_block = const DISK_PAIR[0],
    second_block = const DISK_PAIR[1],
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

/// The guest as an ELF file.
pub fn elf() -> Vec<u8> {
    wrap(code())
}

/// Code as an ELF file: one segment, entered at its beginning.
pub(super) fn wrap(code: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 64 + 56;
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
