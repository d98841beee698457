//! A guest with data of its own: again and again it puts a number from its memory on a disk, and reads the disk again. Each
//! number has its block.
//!
//! ```text
//!   what it is to keep ──▶ [DATA] ──▶ disk ──▶ [READ]        [TICKS] says that it runs
//! ```
//!
//! While [MODE] says so it does something else: it reads, or writes, blocks all over its disk as fast as it can, a tick each.
//!
//! Tests write and read the words through the memory of its process, behind the back of everybody who owns the VM.

#![expect(unsafe_code, reason = "guest code is assembled here and its bytes are read")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, setpriority_process};

use super::guest::{DISKS, FREE_MEMORY, LOAD_ADDRESS, wrap};
use super::process::Failure;

/// Where the words are, behind the code. They are loaded with it, so they are there before the guest has run at all.
pub const WORDS: u64 = LOAD_ADDRESS + 0x1000;
const MAGIC: u64 = 0x666f_726b_6421_7469;
const DATA: u64 = 8;
const READ: u64 = 16;
const TICKS: u64 = 24;
const MODE: u64 = 32;
const DISK: usize = 40;
/// Where memory begins that the guest does not use.
const UNUSED: u64 = 32 << 20;
/// The blocks that are used, from the second of the disk on.
const BLOCKS: u64 = 2048;
/// The size of a block.
const BLOCK: u64 = 4096;

/// Where a number is on the disk, in bytes.
pub fn place(number: u64) -> u64 {
    (1 + number % BLOCKS) * BLOCK
}

/// What the guest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Keep = 0,
    ReadAll = 1,
    WriteAll = 2,
}

std::arch::global_asm!(
    r#"
    .pushsection .rodata.forkd_ticking_guest, "a", @progbits
    .globl forkd_ticking_guest_begin
    .hidden forkd_ticking_guest_begin
    .globl forkd_ticking_guest_end
    .hidden forkd_ticking_guest_end
forkd_ticking_guest_begin:
    // r12 has the words. rsi has memory: from its second page on, a page each for descriptors, available ring, used ring,
    // header and status of a request, its block, the stack.
    mov r12d, {words}
    mov esi, {memory}
    lea rsp, [rsi + 0x7000]

    // The disk's driver: rbp has the registers, r10 how many requests there were.
    mov ebp, [r12 + {disk}]
    mov dword ptr [rbp + 0x70], 0           // status: reset
    mov dword ptr [rbp + 0x70], 3           // acknowledge, driver
    mov dword ptr [rbp + 0x24], 0
    mov dword ptr [rbp + 0x20], 0x200       // can flush, so that not every write is flushed
    mov dword ptr [rbp + 0x24], 1
    mov dword ptr [rbp + 0x20], 1           // version 1
    mov dword ptr [rbp + 0x70], 0xb         // features are good
    mov dword ptr [rbp + 0x30], 0           // queue 0
    mov dword ptr [rbp + 0x38], 8           // has eight places
    lea eax, [rsi + 0x1000]
    mov [rbp + 0x80], eax
    mov dword ptr [rbp + 0x84], 0
    lea eax, [rsi + 0x2000]
    mov [rbp + 0x90], eax
    mov dword ptr [rbp + 0x94], 0
    lea eax, [rsi + 0x3000]
    mov [rbp + 0xa0], eax
    mov dword ptr [rbp + 0xa4], 0
    mov dword ptr [rbp + 0x44], 1           // the queue is ready
    mov dword ptr [rbp + 0x70], 0xf         // and so is the driver
    // One chain for all requests: header, block, status.
    lea rax, [rsi + 0x4000]
    mov [rsi + 0x1000], rax
    mov dword ptr [rsi + 0x1008], 16
    mov dword ptr [rsi + 0x100c], 0x10001   // then 1
    lea rax, [rsi + 0x5000]
    mov [rsi + 0x1010], rax
    mov dword ptr [rsi + 0x1018], 4096
    lea rax, [rsi + 0x4010]
    mov [rsi + 0x1020], rax
    mov dword ptr [rsi + 0x1028], 1
    mov dword ptr [rsi + 0x102c], 2         // the device writes it
    mov word ptr [rsi + 0x2000], 1          // no interrupts
    xor r10d, r10d

31: mov r14, [r12 + {mode}]
    test r14, r14
    jnz 38f
    mov r9, [r12 + {data}]
    cmp r9, [r12 + {read}]
    je 32f
    mov [rsi + 0x5000], r9
    mov rdi, r9
    mov eax, 1                              // write
    call 34f
32: mov qword ptr [rsi + 0x5000], -1
    mov rdi, r9
    xor eax, eax                            // read
    call 34f
    mov rax, -1
    cmp byte ptr [rsi + 0x4010], 0
    jne 33f
    mov rax, [rsi + 0x5000]
33: mov [r12 + {read}], rax
    inc qword ptr [r12 + {ticks}]
    // Not halted: some hosts cannot wake a guest of no known system.
    rdtsc
    shl rdx, 32
    lea r11, [rax + rdx + {pause}]
36: pause
    rdtsc
    shl rdx, 32
    add rax, rdx
    cmp rax, r11
    jb 36b
    jmp 31b

    // Blocks in no order, until it is told otherwise.
38: mov rax, 6364136223846793005
    imul r13, rax
    inc r13
    mov rdi, r13
    shr rdi, 33
    mov rax, r14
    dec rax                                 // read or write
    call 34f
    inc qword ptr [r12 + {ticks}]
    jmp 31b

    // A request for the block of the number in rdi: 0 in eax to read, 1 to write.
34: and edi, {blocks} - 1
    inc edi
    shl rdi, 3                              // sectors
    mov ecx, 0x20003                        // then 2; the device writes the block,
    sub ecx, eax
    sub ecx, eax                            // or reads it
    mov [rsi + 0x101c], ecx
    mov [rsi + 0x4000], eax
    mov [rsi + 0x4008], rdi
    mov byte ptr [rsi + 0x4010], 0xff
    inc r10d
    mov [rsi + 0x2002], r10w
    mov dword ptr [rbp + 0x50], 0           // notify queue 0
35: pause
    cmp [rsi + 0x3002], r10w
    jne 35b
    ret
forkd_ticking_guest_end:
    .popsection
    "#,
    memory = const FREE_MEMORY,
    pause = const 50_000_000,
    words = const WORDS,
    data = const DATA,
    read = const READ,
    ticks = const TICKS,
    mode = const MODE,
    disk = const DISK,
    blocks = const BLOCKS,
);

unsafe extern "C" {
    static forkd_ticking_guest_begin: u8;
    static forkd_ticking_guest_end: u8;
}

/// The guest as an ELF file.
pub fn elf() -> Vec<u8> {
    elf_on(0)
}

/// The same with its data on another of its disks, the first or the second.
pub fn elf_on(disk: usize) -> Vec<u8> {
    let begin = &raw const forkd_ticking_guest_begin;
    let end = &raw const forkd_ticking_guest_end;
    // SAFETY: both symbols bound one contiguous run of initialised, read-only bytes that the assembler laid out above,
    // and they live as long as the program.
    let code = unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) };
    let mut image = code.to_vec();
    image.resize(0x1000, 0);
    image.extend_from_slice(&MAGIC.to_le_bytes());
    image.resize(0x2000, 0);
    image[0x1000 + DISK..][..4].copy_from_slice(&DISKS[disk].to_le_bytes());
    wrap(&image)
}

/// The guest's words, in the memory of its process.
#[derive(Debug)]
pub struct Words {
    memory: File,
    at: u64,
}

/// Lets everything else go first: the guest never halts.
fn be_polite(pid: i32) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| Pid::from_raw(thread.file_name().to_str()?.parse().ok()?));
    // One may have ended.
    ids.for_each(|id| {
        let _ = setpriority_process(Some(id), 10);
    });
}

impl Words {
    /// Waits for a guest that has just begun.
    pub fn of(pid: i32, patience: Duration) -> Result<Words, Failure> {
        let begun = Instant::now();
        loop {
            match Words::find(pid)? {
                Some(words) => return Ok(words),
                None if begun.elapsed() > patience => {
                    return Err(format!("{pid} has no ticking guest").into());
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn find(pid: i32) -> Result<Option<Words>, Failure> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        // Guest memory begins where a mapping begins, wherever its pages were told apart since.
        for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
            let begin = line.split('-').next().and_then(|begin| u64::from_str_radix(begin, 16).ok());
            let words = Words { memory: memory.try_clone()?, at: begin.ok_or("no mapping")? + WORDS };
            if words.word(0).is_ok_and(|magic| magic == MAGIC) {
                be_polite(pid);
                return Ok(Some(words));
            }
        }
        Ok(None)
    }

    fn word(&self, offset: u64) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, self.at + offset)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Puts bytes into memory that the guest does not use.
    pub fn fill(&self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.memory.write_all_at(bytes, self.at - WORDS + UNUSED)?)
    }

    /// What the guest has in its memory.
    pub fn kept(&self) -> Result<u64, Failure> {
        self.word(DATA)
    }

    /// What it has read from its disk.
    pub fn read(&self) -> Result<u64, Failure> {
        self.word(READ)
    }

    pub fn ticks(&self) -> Result<u64, Failure> {
        self.word(TICKS)
    }

    /// Has the guest do something else from now on.
    pub fn set_mode(&self, mode: Mode) -> Result<(), Failure> {
        Ok(self.memory.write_all_at(&(mode as u64).to_le_bytes(), self.at + MODE)?)
    }

    /// Waits until the guest has gone around twice since it had this many ticks: what it has read from its disk is new.
    pub fn round(&self, before: u64, patience: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while self.ticks()? < before + 2 {
            if begun.elapsed() > patience {
                return Err(format!("the guest does not run: {before} ticks").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Has the guest keep a number, and waits until it is on its disk, too.
    pub fn keep(&self, number: u64, patience: Duration) -> Result<(), Failure> {
        self.memory.write_all_at(&number.to_le_bytes(), self.at + DATA)?;
        let begun = Instant::now();
        while self.read()? != number {
            if begun.elapsed() > patience {
                return Err(format!("the guest has not written {number}, but {}", self.read()?).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
