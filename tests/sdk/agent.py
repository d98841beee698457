"""The official E2B client drives an agent: commands, files, watchers, terminals.

With the path of a forkd-agent as its argument it starts that one; without, one must answer on port 49983 of localhost.
Every function named test_* is a test. It gets a sandbox and a directory of its own.
"""

import asyncio
import io
import os
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
import uuid

from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    NotFoundException,
    PtySize,
    Sandbox,
    TimeoutException,
)


# How many times longer everything may take: a guest in an emulator is slow.
SLOWNESS = float(os.environ.get("FORKD_TEST_SLOWNESS", "1"))


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def until(condition, seconds=10):
    """Waits for something that takes a moment."""
    end = time.monotonic() + seconds * SLOWNESS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


# Commands


def test_foreground(sandbox, directory):
    result = sandbox.commands.run("echo out; echo err >&2; pwd; echo $COLOUR", cwd=directory, envs={"COLOUR": "blue"})
    assert result.exit_code == 0
    assert result.stdout == f"out\n{directory}\nblue\n", result.stdout
    assert result.stderr == "err\n"


def test_exit_code(sandbox, directory):
    error = raises(CommandExitException, lambda: sandbox.commands.run("echo before; exit 7"))
    assert (error.exit_code, error.stdout) == (7, "before\n")


def test_output_comes_while_the_command_runs(sandbox, directory):
    seen = []
    sandbox.commands.run("echo one; sleep 0.5; echo two", on_stdout=lambda text: seen.append((text, time.monotonic())))
    assert [text for text, _ in seen] == ["one\n", "two\n"], seen
    assert seen[1][1] - seen[0][1] > 0.3


def test_large_output_is_whole(sandbox, directory):
    result = sandbox.commands.run("head -c 20000000 /dev/zero | tr '\\0' x; echo end >&2")
    assert len(result.stdout) == 20_000_000 and result.stderr == "end\n"


def test_odd_bytes(sandbox, directory):
    result = sandbox.commands.run("printf 'h\\303\\251'; sleep 0.1; printf '\\342\\202'; sleep 0.1; printf '\\254'")
    assert result.stdout == "hé€", result.stdout


def test_background_and_wait(sandbox, directory):
    handle = sandbox.commands.run("sleep 0.2; echo done", background=True)
    assert handle.pid > 0
    assert handle.wait().stdout == "done\n"


def test_list(sandbox, directory):
    handle = sandbox.commands.run("sleep 60", background=True, envs={"A": "1"}, cwd=directory)
    found = [process for process in sandbox.commands.list() if process.pid == handle.pid]
    assert len(found) == 1 and found[0].envs == {"A": "1"} and found[0].cwd == directory
    assert found[0].args[-1] == "sleep 60"
    assert handle.kill()
    assert until(lambda: handle.pid not in [process.pid for process in sandbox.commands.list()])


def test_kill(sandbox, directory):
    handle = sandbox.commands.run("sleep 60 & sleep 60; true", background=True)
    assert sandbox.commands.kill(handle.pid)
    error = raises(CommandExitException, handle.wait)
    assert error.exit_code != 0
    assert until(lambda: not sandbox.commands.kill(handle.pid))


def test_kill_of_nothing(sandbox, directory):
    assert sandbox.commands.kill(4_000_000) is False


def test_stdin(sandbox, directory):
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "hello ")
    sandbox.commands.send_stdin(handle.pid, "world\n")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "hello world\nend\n"


def test_stdin_of_a_stream(sandbox, directory):
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.stream_input(handle.pid, ("x" * 100_000 for _ in range(20)))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "2000000"


def test_no_stdin(sandbox, directory):
    assert sandbox.commands.run("cat; echo end").stdout == "end\n"


def test_connect(sandbox, directory):
    first = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    second = sandbox.commands.connect(first.pid)
    sandbox.commands.send_stdin(first.pid, "it\n")
    assert first.wait().stdout == "got it\n"
    assert second.wait().stdout == "got it\n"


def test_disconnect_does_not_kill(sandbox, directory):
    handle = sandbox.commands.run(f"sleep 1; echo alive > {directory}/mark", background=True)
    handle.disconnect()
    assert until(lambda: sandbox.files.exists(f"{directory}/mark"))


def test_connect_after_the_end(sandbox, directory):
    handle = sandbox.commands.run("exit 5", background=True)
    raises(CommandExitException, handle.wait)
    assert raises(CommandExitException, lambda: sandbox.commands.connect(handle.pid).wait()).exit_code == 5
    raises(NotFoundException, lambda: sandbox.commands.connect(4_000_000))


def test_timeout_kills(sandbox, directory):
    started = time.monotonic()
    raises(TimeoutException, lambda: sandbox.commands.run("sleep 30; sleep 30", timeout=1))
    assert time.monotonic() - started < 10 * SLOWNESS
    assert until(lambda: not [process for process in sandbox.commands.list() if "sleep 30" in str(process.args)])


def test_a_daemon_does_not_hold_the_call(sandbox, directory):
    started = time.monotonic()
    result = sandbox.commands.run(f"(sleep {2 * SLOWNESS}; echo late; echo late > {directory}/late) & echo started")
    assert result.stdout == "started\n" and time.monotonic() - started < 1.5 * SLOWNESS
    assert until(lambda: sandbox.files.exists(f"{directory}/late")), "writing to a stream nobody reads must not kill"


def test_wrong_directory_and_user(sandbox, directory):
    raises(InvalidArgumentException, lambda: sandbox.commands.run("true", cwd="/no/such/directory"))
    raises(Exception, lambda: sandbox.commands.run("true", user="nobody-of-this-name"))


def test_owner_home_and_directory(sandbox, directory):
    user, home = sandbox.commands.run("id -un; echo $HOME").stdout.splitlines()
    assert sandbox.commands.run("pwd; getent passwd $(id -u) | cut -d: -f6").stdout == f"{home}\n{home}\n"
    sandbox.files.write(f"{directory}/made/file", "x")
    owners = sandbox.commands.run(f"stat -c %U {directory}/made {directory}/made/file").stdout
    assert owners == f"{user}\n{user}\n", owners
    entry = sandbox.files.get_info(f"{directory}/made/file")
    assert entry.owner == user, entry
    assert sandbox.commands.run("echo out >/dev/stdout; echo err >/dev/stderr").stdout == "out\n"


def test_user(sandbox, directory):
    if sandbox.commands.run("id -u").stdout.strip() != "0":
        return
    result = sandbox.commands.run("id -un; id -gn; echo $HOME $USER; groups", user="root")
    assert result.stdout.splitlines()[:3] == ["root", "root", "/root root"], result.stdout
    assert sandbox.commands.run("id -un", user="daemon", cwd="/").stdout == "daemon\n"
    # Who is not root may open its own streams by name.
    assert sandbox.commands.run("echo out >/dev/stdout", user="daemon", cwd="/").stdout == "out\n"


def test_many_at_once(sandbox, directory):
    handles = [sandbox.commands.run(f"read line; echo {number} $line", background=True, stdin=True, timeout=0) for number in range(50)]
    assert len(sandbox.commands.list()) >= 50
    for handle in handles:
        sandbox.commands.send_stdin(handle.pid, "go\n")
    assert [handle.wait().stdout for handle in handles] == [f"{number} go\n" for number in range(50)]


# Files


def test_write_and_read(sandbox, directory):
    path = f"{directory}/deep/new/file.txt"
    info = sandbox.files.write(path, "héllo\n")
    assert (info.path, info.name, info.type) == (path, "file.txt", FileType.FILE)
    assert sandbox.files.read(path) == "héllo\n"
    assert sandbox.files.read(path, format="bytes") == "héllo\n".encode()
    sandbox.files.write(path, b"\x00\xff")
    assert sandbox.files.read(path, format="bytes") == b"\x00\xff"
    sandbox.files.write(path, "")
    assert sandbox.files.read(path) == ""


def test_names(sandbox, directory):
    for name in ["with space", "ünïcode", 'quo"te', "semi;colon", "per%cent", "plus+", "back\\slash"]:
        sandbox.files.write(f"{directory}/{name}", name)
        assert sandbox.files.read(f"{directory}/{name}") == name
    assert len(sandbox.files.list(directory)) == 7


def test_large_file(sandbox, directory):
    contents = bytes(range(256)) * 80_000
    sandbox.files.write(f"{directory}/large", contents)
    assert sandbox.files.read(f"{directory}/large", format="bytes") == contents
    assert b"".join(sandbox.files.read(f"{directory}/large", format="stream")) == contents


def test_octet_stream_and_gzip(sandbox, directory):
    contents = b"again and again " * 100_000
    sandbox.files.write(f"{directory}/stream", io.BytesIO(contents))
    assert sandbox.files.read(f"{directory}/stream", format="bytes", gzip=True) == contents
    sandbox.files.write(f"{directory}/packed", contents, gzip=True)
    assert sandbox.files.read(f"{directory}/packed", format="bytes") == contents


def test_write_files(sandbox, directory):
    entries = [{"path": f"{directory}/{number}/file", "data": f"text {number}"} for number in range(5)]
    infos = sandbox.files.write_files(entries)
    assert [info.path for info in infos] == [entry["path"] for entry in entries]
    assert [sandbox.files.read(entry["path"]) for entry in entries] == [entry["data"] for entry in entries]


def test_relative_paths_begin_at_home(sandbox, directory):
    name = f"sdk-{uuid.uuid4().hex}"
    info = sandbox.files.write(name, "x")
    home = sandbox.commands.run("echo $HOME").stdout.strip()
    assert info.path == f"{home}/{name}"
    assert sandbox.files.exists(f"~/{name}")
    sandbox.files.remove(name)


def test_missing_file(sandbox, directory):
    raises(NotFoundException, lambda: sandbox.files.read(f"{directory}/none"))
    raises(NotFoundException, lambda: sandbox.files.get_info(f"{directory}/none"))
    raises(NotFoundException, lambda: sandbox.files.list(f"{directory}/none"))
    raises(InvalidArgumentException, lambda: sandbox.files.read(directory))
    assert sandbox.files.exists(f"{directory}/none") is False


def test_list_with_depth(sandbox, directory):
    sandbox.files.write(f"{directory}/a/b/c", "1")
    sandbox.files.write(f"{directory}/file", "12345")
    assert [entry.name for entry in sandbox.files.list(directory)] == ["a", "file"]
    assert [entry.name for entry in sandbox.files.list(directory, depth=3)] == ["a", "b", "c", "file"]
    raises(InvalidArgumentException, lambda: sandbox.files.list(f"{directory}/file"))


def test_info(sandbox, directory):
    sandbox.files.write(f"{directory}/file", "12345")
    sandbox.commands.run(f"chmod 640 file; ln -s file link", cwd=directory)
    info = sandbox.files.get_info(f"{directory}/file")
    assert (info.size, info.mode, info.permissions, info.type) == (5, 0o640, "-rw-r-----", FileType.FILE)
    assert info.owner == sandbox.commands.run("id -un").stdout.strip()
    assert abs(info.modified_time.timestamp() - time.time()) < 3600
    assert sandbox.files.get_info(f"{directory}/link").symlink_target == f"{directory}/file"
    assert sandbox.files.get_info(directory).type == FileType.DIR


def test_metadata(sandbox, directory):
    info = sandbox.files.write(f"{directory}/noted", "x", metadata={"author": "ann", "kind": "note"})
    assert info.metadata == {"author": "ann", "kind": "note"}
    assert sandbox.files.get_info(f"{directory}/noted").metadata == {"author": "ann", "kind": "note"}


def test_make_dir_rename_remove(sandbox, directory):
    assert sandbox.files.make_dir(f"{directory}/x/y") is True
    assert sandbox.files.make_dir(f"{directory}/x/y") is False
    sandbox.files.write(f"{directory}/x/y/file", "text")
    moved = sandbox.files.rename(f"{directory}/x", f"{directory}/new/place")
    assert moved.path == f"{directory}/new/place"
    assert sandbox.files.read(f"{directory}/new/place/y/file") == "text"
    sandbox.files.remove(f"{directory}/new")
    assert not sandbox.files.exists(f"{directory}/new")
    sandbox.files.remove(f"{directory}/new")
    raises(NotFoundException, lambda: sandbox.files.rename(f"{directory}/none", f"{directory}/other"))


def test_owner_of_uploads(sandbox, directory):
    if sandbox.commands.run("id -u").stdout.strip() != "0":
        return
    sandbox.files.write(f"{directory}/owned/file", "x", user="daemon")
    assert sandbox.files.get_info(f"{directory}/owned/file").owner == "daemon"
    assert sandbox.files.get_info(f"{directory}/owned").owner == "daemon"


def test_full_disk(sandbox, directory):
    mounted = "mount -t tmpfs -o size=2m tmpfs ."
    if sandbox.commands.run(f"{mounted} && echo yes || true", cwd=directory).stdout != "yes\n":
        return
    try:
        for options in [{}, {"use_octet_stream": True}]:
            raises(NotEnoughSpaceException, lambda: sandbox.files.write(f"{directory}/large", b"x" * 30_000_000, **options))
            assert not sandbox.files.exists(f"{directory}/large")
        sandbox.files.write(f"{directory}/small", "fits")
    finally:
        sandbox.commands.run(f"umount {directory}")


def test_ranges_over_http(sandbox, directory):
    path = f"{directory}/range"
    sandbox.files.write(path, "0123456789")
    request = urllib.request.Request(f"http://localhost:49983/files?path={path}", headers={"Range": "bytes=3-5"})
    with urllib.request.urlopen(request) as response:
        assert (response.status, response.headers["Content-Range"]) == (206, "bytes 3-5/10")
        assert response.read() == b"345"


# Watchers


def test_watch(sandbox, directory):
    handle = sandbox.files.watch_dir(directory)
    sandbox.files.write(f"{directory}/file", "x")
    events = []
    until(lambda: events.extend(handle.get_new_events()) or any(event.type == FilesystemEventType.WRITE for event in events))
    kinds = {event.type for event in events if event.name == "file"}
    assert {FilesystemEventType.CREATE, FilesystemEventType.WRITE} <= kinds, events
    sandbox.files.rename(f"{directory}/file", f"{directory}/other")
    sandbox.files.remove(f"{directory}/other")
    events.clear()
    assert until(lambda: events.extend(handle.get_new_events()) or any(event.type == FilesystemEventType.REMOVE for event in events))
    handle.stop()
    raises(Exception, handle.get_new_events)


def test_watch_recursive(sandbox, directory):
    sandbox.files.make_dir(f"{directory}/a")
    handle = sandbox.files.watch_dir(directory, recursive=True, include_entry=True)
    sandbox.files.write(f"{directory}/a/b/c", "x")
    events = []
    assert until(lambda: events.extend(handle.get_new_events()) or any(event.name == "a/b/c" for event in events)), events
    assert any(event.entry and event.entry.name == "c" for event in events), events
    handle.stop()
    raises(NotFoundException, lambda: sandbox.files.watch_dir(f"{directory}/none"))


def test_watch_as_a_stream(sandbox, directory):
    async def watch():
        asynchronous = await AsyncSandbox.create()
        events = []
        handle = await asynchronous.files.watch_dir(directory, on_event=events.append)
        await asynchronous.files.write(f"{directory}/file", "x")
        for _ in range(int(200 * SLOWNESS)):
            if any(event.name == "file" and event.type == FilesystemEventType.WRITE for event in events):
                break
            await asyncio.sleep(0.02)
        await handle.stop()
        return events

    events = asyncio.run(watch())
    assert any(event.type == FilesystemEventType.CREATE for event in events), events


def test_commands_of_the_asynchronous_client(sandbox, directory):
    async def run():
        asynchronous = await AsyncSandbox.create()
        results = await asyncio.gather(*(asynchronous.commands.run(f"sleep 0.3; echo {number}") for number in range(20)))
        return [result.stdout for result in results]

    assert asyncio.run(run()) == [f"{number}\n" for number in range(20)]


# Terminals


def collect(handle):
    """Reads a terminal's output beside the test."""
    output = []

    def read():
        try:
            handle.wait(on_pty=lambda data: output.append(data))
        except Exception as error:
            output.append(repr(error).encode())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return output, thread


def test_terminal(sandbox, directory):
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100), cwd=directory, envs={"PS1": "> "})
    output, thread = collect(terminal)
    seen = lambda text: until(lambda: text in b"".join(output).decode(errors="replace"))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; tty\n")
    assert seen("30 100") and seen("/dev/pts/"), output
    sandbox.pty.resize(terminal.pid, PtySize(rows=40, cols=120))
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    assert seen("40 120"), output
    sandbox.pty.send_stdin(terminal.pid, b"sleep 60\n")
    time.sleep(0.3 * SLOWNESS)
    sandbox.pty.send_stdin(terminal.pid, b"\x03")
    sandbox.pty.send_stdin(terminal.pid, b"echo interrupted-$((40 + 2))\n")
    assert seen("interrupted-42"), output
    sandbox.pty.send_stdin(terminal.pid, b"exit 0\n")
    thread.join(10 * SLOWNESS)
    assert not thread.is_alive()


def test_terminal_kill(sandbox, directory):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    output, thread = collect(terminal)
    assert sandbox.pty.kill(terminal.pid) is True
    thread.join(10 * SLOWNESS)
    assert not thread.is_alive()
    assert until(lambda: sandbox.pty.kill(terminal.pid) is False)


def test_terminal_connect(sandbox, directory):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    output, thread = collect(again)
    sandbox.pty.send_stdin(terminal.pid, b"echo back-$((1 + 1))\n")
    assert until(lambda: b"back-2" in b"".join(output)), output
    sandbox.pty.kill(terminal.pid)
    thread.join(10 * SLOWNESS)


# Running them


def answers(seconds):
    def health():
        try:
            with urllib.request.urlopen("http://localhost:49983/health", timeout=5) as response:
                return response.status == 204
        except OSError:
            return False

    return until(health, seconds)


def main(arguments):
    agent = None
    if arguments:
        addresses = ["--envd", "127.0.0.1:49983", "--interpreter", "127.0.0.1:49999"]
        agent = subprocess.Popen([arguments[0], "serve", *addresses], stdout=subprocess.DEVNULL)
    try:
        if not answers(60):
            print("no agent answers on port 49983", file=sys.stderr)
            return 2
        failed = run_all(arguments[1:])
        if agent and agent.poll() is not None:
            print(f"the agent ended: {agent.returncode}", file=sys.stderr)
            failed += 1
        return 1 if failed else 0
    finally:
        if agent:
            agent.kill()
            agent.wait()


def run_all(names):
    sandbox = Sandbox.create()
    assert sandbox.is_running()
    root = f"/tmp/sdk-{uuid.uuid4().hex}"
    tests = [(name, function) for name, function in globals().items() if name.startswith("test_")]
    tests = [(name, function) for name, function in tests if not names or any(part in name for part in names)]
    failed = 0
    for name, function in tests:
        directory = f"{root}/{name}"
        sandbox.files.make_dir(directory)
        started = time.monotonic()
        try:
            function(sandbox, directory)
            print(f"ok      {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
    sandbox.files.remove(root)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
