"""What runs in the sandbox that busy/mod.rs branches: programs, and functions of its Python context. All end when /run/stop
is there."""

import hashlib
import json
import os
import socket
import sys
import time

STOP = "/run/stop"
FILES = "/srv/files"
LOG = "/srv/log"
KEPT = 16


def on():
    return not os.path.exists(STOP)


def stream():
    """Numbered lines to stdout."""
    number = 0
    while on():
        number += 1
        print("line", number, flush=True)
        time.sleep(0.5)
    print("end", number, flush=True)


def serve():
    """One client, which gets numbered lines and its own ones back."""
    listener = socket.create_server(("127.0.0.1", 7000))
    print("listening", flush=True)
    client, _ = listener.accept()
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n")
    client.settimeout(0.5)
    number = 0
    while on():
        try:
            received = client.recv(1000)
        except TimeoutError:
            number += 1
            client.sendall(b"line %d\n" % number)
            continue
        if not received:
            return
        client.sendall(received)
    client.sendall(b"end %d\n" % number)


def content(number):
    return b"%d\n" % number + hashlib.sha256(b"%d" % number).digest() * 500


def write():
    """Files that are whole or not there, and a log of those that are."""
    os.mkdir(FILES)
    directory = os.open(FILES, os.O_RDONLY)
    log = open(LOG, "wb", buffering=0)
    number = 0
    while on():
        number += 1
        path = "%s/%d" % (FILES, number % KEPT)
        with open(path + ".new", "wb") as file:
            file.write(content(number))
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
        os.fsync(directory)
        log.write(b"%d\n" % number)
        os.fsync(log.fileno())
        show("files", number)
        time.sleep(0.5)


def verify():
    """Returns how many files were written."""
    with open(LOG) as log:
        numbers = [int(line) for line in log]
    assert numbers == list(range(1, len(numbers) + 1)), numbers
    for number in numbers[-KEPT:]:
        with open("%s/%d" % (FILES, number % KEPT), "rb") as file:
            found = file.read()
        # A newer one may be in its place already.
        assert found in (content(number), content(number + KEPT)), (number, found[:10])
    return len(numbers)


def show(name, value):
    with open("/run/%s.new" % name, "w") as file:
        print(value, file=file)
    os.replace("/run/%s.new" % name, "/run/%s" % name)


if __name__ == "__main__":
    {"stream": stream, "serve": serve, "write": write}[sys.argv[1]]()
