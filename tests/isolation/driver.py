# A driver of virtio devices that breaks the rules, for root in a guest. The kernel's own driver is sent away first: then
# /dev/mem shows the device's registers to whoever asks.
import ctypes
import mmap
import os
import random
import socket
import struct
import threading

PAGE = 4096
FIRST = 0xD0000000
NEXT, WRITE, INDIRECT = 1, 2, 4
OUTSIDE = 1 << 40


def send_away(number):
    begin = '%08x-' % (FIRST + number * PAGE)
    with open('/proc/iomem') as ranges:
        name = next(line.split(' : ')[1].split()[0] for line in ranges if line.strip().startswith(begin))
    with open('/sys/bus/platform/drivers/virtio-mmio/unbind', 'w') as unbind:
        unbind.write(name)


class Page:
    """A page of memory that stays where it is."""

    def __init__(self):
        self.bytes = mmap.mmap(-1, PAGE)
        self.bytes[:] = bytes(PAGE)
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        ctypes.CDLL(None).mlock(ctypes.c_void_p(at), ctypes.c_size_t(PAGE))
        with open('/proc/self/pagemap', 'rb') as table:
            table.seek(at // PAGE * 8)
            self.at = (struct.unpack('<Q', table.read(8))[0] & ((1 << 55) - 1)) * PAGE
        assert self.at, 'pagemap tells nothing'

    def descriptor(self, index, at, length, flags=0, following=0):
        struct.pack_into('<QIHH', self.bytes, 16 * index, at, length, flags, following)


class Device:
    def __init__(self, number, queue=0, size=16):
        send_away(number)
        self.file = os.open('/dev/mem', os.O_RDWR | os.O_SYNC)
        self.window = mmap.mmap(self.file, PAGE, offset=FIRST + number * PAGE)
        self.registers = (ctypes.c_uint32 * (PAGE // 4)).from_buffer(self.window)
        self.table, self.available, self.used, self.buffer, self.more = [Page() for _ in range(5)]
        self.queue, self.size = queue, size
        for status in (0, 1, 3):
            self.set(0x70, status)
        # Indirect tables, and version 1.
        for half, features in ((0, 1 << 28), (1, 1)):
            self.set(0x24, half)
            self.set(0x20, features)
        self.set(0x70, 11)
        assert self.registers[0x70 // 4] == 11, 'the device does not take its features'

    def set(self, register, value):
        self.registers[register // 4] = value

    def begin(self, table=None):
        self.set(0x30, self.queue)
        self.set(0x38, self.size)
        for register, at in ((0x80, table or self.table.at), (0x90, self.available.at), (0xA0, self.used.at)):
            self.set(register, at & 0xFFFFFFFF)
            self.set(register + 4, at >> 32)
        self.set(0x44, 1)
        self.set(0x70, 15)

    def offer(self, head=0, index=1):
        struct.pack_into('<HHH', self.available.bytes, 0, 0, index, head)
        self.set(0x50, self.queue)


def ring_outside(it):
    it.begin(table=OUTSIDE)


def buffer_outside(it):
    it.begin()
    it.table.descriptor(0, OUTSIDE, 64, it.flags)
    it.offer()


def huge_length(it):
    it.begin()
    it.table.descriptor(0, it.buffer.at, 0xFFFFFFFF, it.flags | NEXT, 1)
    it.table.descriptor(1, it.buffer.at, 0xFFFFFFFF, it.flags)
    it.offer()


def loop(it):
    it.begin()
    it.table.descriptor(0, it.buffer.at, 16, it.flags | NEXT, 1)
    it.table.descriptor(1, it.buffer.at, 16, it.flags | NEXT, 0)
    it.offer()


def indirect_loop(it):
    it.begin()
    it.table.descriptor(0, it.more.at, 32, INDIRECT)
    it.more.descriptor(0, it.buffer.at, 16, it.flags | NEXT, 1)
    it.more.descriptor(1, it.buffer.at, 16, it.flags | NEXT, 0)
    it.offer()


def indirect_in_indirect(it):
    it.begin()
    it.table.descriptor(0, it.more.at, 16, INDIRECT)
    it.more.descriptor(0, it.more.at, 16, INDIRECT)
    it.offer()


def indirect_outside(it):
    it.begin()
    it.table.descriptor(0, OUTSIDE, 32, INDIRECT)
    it.offer()


def indirect_of_odd_length(it):
    it.begin()
    it.table.descriptor(0, it.more.at, 17, INDIRECT)
    it.offer()


def head_outside(it):
    it.begin()
    it.offer(head=0xFFFF)


def index_ahead(it):
    it.begin()
    it.offer(index=0x8000)


def break_rules(number, queue, writes, case):
    it = Device(number, queue)
    it.flags = WRITE if writes else 0
    globals()[case](it)


def write_beyond_the_end():
    """What the disk answers to writes that begin in its last sector, right behind it, and where an offset overflows."""
    said = []
    it = Device(0)
    it.begin()
    sectors = struct.unpack('<Q', bytes(it.window[0x100:0x108]))[0]
    for count, sector in enumerate((sectors - 1, sectors, (1 << 55) - 1, (1 << 64) - 1)):
        struct.pack_into('<IIQ', it.buffer.bytes, 0, 1, 0, sector)
        it.buffer.bytes[2048] = 0xAA
        it.table.descriptor(0, it.buffer.at, 16, NEXT, 1)
        it.table.descriptor(1, it.more.at, 1024, NEXT, 2)
        it.table.descriptor(2, it.buffer.at + 2048, 1, WRITE)
        struct.pack_into('<HHH', it.available.bytes, 0, 0, count + 1, 0)
        struct.pack_into('<H', it.available.bytes, 4 + 2 * count, 0)
        it.set(0x50, 0)
        while struct.unpack_from('<H', it.used.bytes, 2)[0] != count + 1:
            pass
        said.append(it.buffer.bytes[2048])
    print(said)


def garbage(seed, times=20000):
    """Anything at all, written to the registers of the entropy device."""
    it, chance = Device(3), random.Random(seed)
    for _ in range(times):
        at = chance.choice((chance.randrange(PAGE - 8), 4 * chance.randrange(0x40)))
        length = chance.choice((1, 2, 4, 4, 4, 8))
        kind = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}[length]
        value = chance.choice((chance.getrandbits(64), chance.randrange(16), it.table.at))
        kind.from_buffer(it.window, at).value = value & ((1 << 8 * length) - 1)


def flood(connections=2000, threads=4):
    """Connections over vsock to whoever may listen on the host's side, and to nobody."""

    def one(which):
        for number in range(connections // threads):
            with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as it:
                it.settimeout(5)
                try:
                    it.connect((2, which * connections + number))
                    it.sendall(bytes(65536))
                except OSError:
                    pass

    running = [threading.Thread(target=one, args=(which,)) for which in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print('done')
