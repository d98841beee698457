"""The official E2B clients for Python, unmodified, against a daemon: all that they can do with a sandbox.

E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where it is. Every function named test_* is a test and gets a sandbox that all of
them share. What a version of the client does not have is skipped, and said so.
"""

import asyncio
import concurrent.futures
import io
import os
import sys
import time
import traceback
import urllib.error
import urllib.request
import uuid

import e2b
from e2b_code_interpreter import AsyncSandbox, Sandbox

# How many times longer everything may take: a guest in an emulator is slow.
SLOWNESS = float(os.environ.get("FORKD_TEST_SLOWNESS", "1"))
RUN = uuid.uuid4().hex
VERSION = tuple(int(part) for part in __import__("importlib.metadata").metadata.version("e2b").split("."))


# Older interpreters go to https://49999-<id>.<domain>, wherever E2B_SANDBOX_URL is.
CODE = VERSION >= (2, 30)


class Skipped(Exception):
    pass


def needs(owner, name):
    if not hasattr(owner, name):
        raise Skipped(f"this client has no {name}")


def needs_code():
    if not CODE:
        raise Skipped("this client's interpreter does not know E2B_SANDBOX_URL")


def remember(sandbox, name, number):
    """In the memory of an interpreter, or in a file."""
    if CODE:
        sandbox.run_code(f"{name} = {number}")
    else:
        sandbox.files.write(f"/tmp/{name}", str(number))


def remembered(sandbox, name):
    return sandbox.run_code(name).text if CODE else sandbox.files.read(f"/tmp/{name}")


def until(condition, seconds=10):
    end = time.monotonic() + seconds * SLOWNESS
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def fetch(url, host=None, data=None, method=None):
    request = urllib.request.Request(url, data=data, method=method)
    if host:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=30 * SLOWNESS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# The control plane


def test_info(sandbox):
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.metadata["run"] == RUN and info.metadata["text"] == "grün & blau", info.metadata
    assert info.end_at > info.started_at
    assert "running" in str(info.state).lower(), info.state
    assert sandbox.is_running()


def test_timeout(sandbox):
    before = sandbox.get_info().end_at
    sandbox.set_timeout(1200)
    assert sandbox.get_info().end_at < before, "it may take time away"
    sandbox.set_timeout(3600)
    assert sandbox.get_info().end_at > before


def test_connect_only_extends(sandbox):
    sandbox.set_timeout(1200)
    before = sandbox.get_info().end_at
    again = Sandbox.connect(sandbox.sandbox_id, timeout=30)
    assert again.commands.run("echo again").stdout == "again\n"
    assert abs((again.get_info().end_at - before).total_seconds()) < 5
    # Old clients show the headers of the sandbox to the control plane from here on.
    again.set_timeout(1300)
    assert again.get_info().end_at > before


def test_list(sandbox):
    pages = Sandbox.list(query=e2b.SandboxQuery(metadata={"run": RUN, "text": "grün & blau"}), limit=1)
    found = []
    while pages.has_next:
        found += pages.next_items()
    assert sandbox.sandbox_id in [one.sandbox_id for one in found], found


def test_metrics(sandbox):
    metrics = sandbox.get_metrics()
    assert metrics and metrics[-1].mem_total > 0 and metrics[-1].cpu_count >= 1, metrics
    assert until(lambda: len(sandbox.get_metrics()) > 3, 30)
    times = [metric.timestamp for metric in sandbox.get_metrics()]
    assert times == sorted(times), times
    assert [metric.timestamp for metric in sandbox.get_metrics(end=times[0])] == times[:1]


def test_unknown_sandboxes_and_templates(sandbox):
    raises(e2b.NotFoundException, lambda: Sandbox.connect("i0000000000000000000"))
    assert Sandbox.kill("i0000000000000000000") is False
    raises(Exception, lambda: Sandbox.create("there-is-no-such-template"))


def test_pause_and_connect(sandbox):
    one = Sandbox.create(timeout=600, metadata={"run": RUN})
    remember(one, "kept_number", 42)
    one.files.write("/tmp/kept", "on disk")
    pause = one.pause if hasattr(one, "pause") else one.beta_pause
    pause()
    assert not one.is_running()
    # The second time it is paused already: told, not raised.
    assert pause() in (False, None, one.sandbox_id)
    query = e2b.SandboxQuery(metadata={"run": RUN}, state=[e2b.SandboxState.PAUSED])
    listed = [entry.sandbox_id for entry in Sandbox.list(query=query).next_items()]
    assert listed == [one.sandbox_id], listed
    again = Sandbox.connect(one.sandbox_id, timeout=300)
    assert again.is_running()
    assert remembered(again, "kept_number") == "42"
    assert again.files.read("/tmp/kept") == "on disk"
    assert again.kill() is True
    assert again.kill() is False
    assert not again.is_running()


def test_at_its_end(sandbox):
    if VERSION < (2, 21):
        raise Skipped("this client has no lifecycle")
    one = Sandbox.create(timeout=1, metadata={"run": RUN})
    assert until(lambda: not one.is_running(), 20)
    two = Sandbox.create(timeout=int(3 * SLOWNESS), lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        two.run_code("kept = 'kept'")
        assert until(lambda: "paused" in str(two.get_info().state).lower(), 60)
        # Traffic wakes it.
        assert two.run_code("kept").text == "kept"
    finally:
        two.kill()


def test_fork(sandbox):
    needs(Sandbox, "fork")
    sandbox.run_code("branch = ['common']")
    sandbox.files.write("/tmp/common", "common")
    forks = sandbox.fork(count=3, timeout=600)
    children = [getattr(fork, "sandbox", fork) for fork in forks]
    assert len({child.sandbox_id for child in children} | {sandbox.sandbox_id}) == 4
    sandbox.run_code("branch.append('parent')")
    for number, child in enumerate(children):
        child.run_code(f"branch.append('child {number}')")
    assert sandbox.run_code("branch").text == "['common', 'parent']"
    for number, child in enumerate(children):
        assert child.run_code("branch").text == f"['common', 'child {number}']"
        assert child.files.read("/tmp/common") == "common"
        child.kill()


def test_snapshots(sandbox):
    needs(Sandbox, "create_snapshot")
    remember(sandbox, "frozen", 7)
    snapshot = sandbox.create_snapshot()
    remember(sandbox, "frozen", 8)
    listed = sandbox.list_snapshots() if hasattr(sandbox, "list_snapshots") else Sandbox.list_snapshots()
    assert snapshot.snapshot_id in [one.snapshot_id for one in listed.next_items()]
    one = Sandbox.create(snapshot.snapshot_id, timeout=300)
    try:
        assert remembered(one, "frozen") == "7"
    finally:
        one.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False


def test_network(sandbox):
    one = Sandbox.create(timeout=300, allow_internet_access=False)
    try:
        assert one.commands.run("echo isolated").stdout == "isolated\n"
        if hasattr(one, "update_network"):
            one.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["192.0.2.1"]})
            one.update_network({"deny_out": ["8.8.8.0/24", "1.1.1.1"]})
            error = raises(Exception, lambda: one.update_network({"deny_out": ["example.com"]}))
            assert "denyOut: 'example.com' is not an address" in str(error), error
    finally:
        one.kill()


def test_private_traffic(sandbox):
    try:
        one = Sandbox.create(timeout=300, network={"allow_public_traffic": False})
    except TypeError:
        raise Skipped("this client has no network")
    try:
        # The client shows the token by itself.
        if CODE:
            assert one.run_code("1 + 1").text == "2"
        host = one.get_host(8000)
        base = os.environ["E2B_SANDBOX_URL"]
        assert fetch(base, host=host)[0] == 403
    finally:
        one.kill()


# The agent


def test_commands(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2; echo $FROM_CREATE $COLOUR", envs={"COLOUR": "blue"})
    assert (result.stdout, result.stderr, result.exit_code) == ("out\nset blue\n", "err\n", 0)
    failed = raises(e2b.CommandExitException, lambda: sandbox.commands.run("echo before; exit 7"))
    assert (failed.exit_code, failed.stdout) == (7, "before\n")
    seen = []
    text = "größe – 日本語 🦊\n"
    sandbox.commands.run(f"for i in 1 2 3; do printf '{text}'; sleep 0.1; done", on_stdout=seen.append)
    assert "".join(seen) == text * 3, seen
    raises(e2b.TimeoutException, lambda: sandbox.commands.run("sleep 60", timeout=1))


def test_user(sandbox):
    """Whatever names nobody is done by `user`, in its home, who may become root."""

    def run(command, **options):
        return sandbox.commands.run(command, **options).stdout

    assert run("id -un; id -u; pwd; echo $HOME $USER $LOGNAME") == "user\n1000\n/home/user\n/home/user user user\n"
    # As frameworks ask, whose E2B back ends name both.
    assert run("id -un; pwd", user="user", cwd="/home/user") == "user\n/home/user\n"
    assert run("id -un; echo $HOME; pwd", user="root", cwd="/") == "root\n/root\n/\n"
    assert run("sudo id -u; sudo -n -u user id -un; echo x | sudo tee /etc/by-user; stat -c %U /etc/by-user") == "0\nuser\nx\nroot\n"
    denied = raises(e2b.CommandExitException, lambda: run("touch /etc/not-mine"))
    assert "denied" in denied.stderr, denied.stderr
    # The streams are the user's, too.
    assert run("echo out >/dev/stdout") == "out\n"
    sandbox.files.write("mine.txt", "x")
    sandbox.files.write("/home/user/a/b/deep.txt", "x")
    sandbox.files.make_dir("made")
    owned = run("stat -c '%n %U:%G' /home/user /home/user/mine.txt /home/user/a /home/user/a/b/deep.txt /home/user/made")
    assert {line.split()[1] for line in owned.splitlines()} == {"user:user"}, owned
    info = sandbox.files.get_info("mine.txt")
    assert info.path == "/home/user/mine.txt" and getattr(info, "owner", "user") == "user", info
    sandbox.files.write("/root/theirs.txt", "x", user="root")
    assert run("stat -c %U:%G /root/theirs.txt", user="root") == "root:root\n"
    if CODE:
        code = "import getpass, os; (os.getuid(), getpass.getuser(), os.getcwd(), os.path.expanduser('~'))"
        assert sandbox.run_code(code).text == "(1000, 'user', '/home/user', '/home/user')"
        here = "id -un; pwd; sudo id -u"
        assert "".join(sandbox.run_code(here, language="bash").logs.stdout) == "user\n/home/user\n0\n"
        script = "console.log(process.getuid(), process.cwd(), process.env.HOME)"
        assert sandbox.run_code(script, language="javascript").logs.stdout == ["1000 /home/user /home/user\n"]
        context = sandbox.create_code_context()
        assert sandbox.run_code(code, context=context).text == "(1000, 'user', '/home/user', '/home/user')"
    seen = []
    pty = sandbox.pty.create(e2b.PtySize(rows=24, cols=80), timeout=0)
    sandbox.pty.send_stdin(pty.pid, b"echo $(id -un) at $(pwd); exit\n")
    pty.wait(on_pty=lambda data: seen.append(bytes(data)))
    assert b"user at /home/user" in b"".join(seen), seen


def test_background(sandbox):
    handle = sandbox.commands.run("cat; echo done", background=True, stdin=True)
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    sandbox.commands.send_stdin(handle.pid, "hello\n")
    if hasattr(sandbox.commands, "close_stdin"):
        sandbox.commands.close_stdin(handle.pid)
        result = handle.wait()
        assert result.stdout == "hello\ndone\n", result
    else:
        assert sandbox.commands.kill(handle.pid)
    other = sandbox.commands.run("sleep 300", background=True)
    connected = sandbox.commands.connect(other.pid)
    connected.disconnect()
    assert sandbox.commands.kill(other.pid) is True
    assert until(lambda: sandbox.commands.kill(other.pid) is False)


def test_a_hundred_commands_at_once(sandbox):
    if VERSION < (2, 60):
        raise Skipped("once is enough")

    def command(number):
        # One after the other: the machine's forwarded port takes few connections at the same instant.
        time.sleep(number * 0.1 * SLOWNESS)
        return sandbox.commands.run(f"sleep {10 * SLOWNESS}; echo {number}", timeout=600, request_timeout=300).stdout

    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        outputs = list(pool.map(command, range(100)))
    assert outputs == [f"{number}\n" for number in range(100)]


def test_files(sandbox):
    home = f"/tmp/files-{RUN}"
    assert sandbox.files.make_dir(home) is True
    assert sandbox.files.make_dir(home) is False
    sandbox.files.write(f"{home}/a ü.txt", "größe")
    assert sandbox.files.read(f"{home}/a ü.txt") == "größe"
    sandbox.files.write(f"{home}/bytes", bytes(range(256)))
    assert bytes(sandbox.files.read(f"{home}/bytes", format="bytes")) == bytes(range(256))
    sandbox.files.write(f"{home}/stream", io.BytesIO(b"x" * 3_000_000))
    assert len(sandbox.files.read(f"{home}/stream")) == 3_000_000
    sandbox.files.write(f"{home}/empty", "")
    assert sandbox.files.read(f"{home}/empty") == ""
    many = [{"path": f"{home}/many/{n}", "data": str(n)} for n in range(5)]
    write_many = sandbox.files.write_files if hasattr(sandbox.files, "write_files") else sandbox.files.write
    assert len(write_many(many)) == 5
    names = sorted(entry.name for entry in sandbox.files.list(home))
    assert names == ["a ü.txt", "bytes", "empty", "many", "stream"], names
    assert len(sandbox.files.list(home, depth=2)) == 10
    assert sandbox.files.exists(f"{home}/bytes") and not sandbox.files.exists(f"{home}/nothing")
    info = sandbox.files.get_info(f"{home}/bytes")
    assert info.size == 256 and info.path == f"{home}/bytes", info
    assert sandbox.files.rename(f"{home}/bytes", f"{home}/renamed").path == f"{home}/renamed"
    sandbox.files.remove(f"{home}/renamed")
    raises(e2b.NotFoundException, lambda: sandbox.files.read(f"{home}/renamed"))


def test_watch(sandbox):
    home = f"/tmp/watch-{RUN}"
    sandbox.files.make_dir(home)
    watcher = sandbox.files.watch_dir(home)
    sandbox.files.write(f"{home}/new", "x")
    seen = []
    assert until(lambda: seen.extend(watcher.get_new_events()) or any(event.name == "new" for event in seen)), seen
    watcher.stop()


def test_signed_links(sandbox):
    path = f"/tmp/signed-{RUN}"
    url = sandbox.upload_url(path, use_signature_expiration=600) if "use_signature_expiration" in sandbox.upload_url.__code__.co_varnames else sandbox.upload_url(path)
    boundary = "x" * 20
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nsigned\r\n--{boundary}--\r\n'
    ).encode()
    request = urllib.request.Request(url, data=body, method="POST")
    request.add_header("Content-Type", f"multipart/form-data; boundary={boundary}")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    status, data = fetch(sandbox.download_url(path))
    assert (status, data) == (200, b"signed")
    status, _ = fetch(sandbox.download_url(path).replace("v1_", "v1_x"))
    assert status in (400, 401), status


def test_terminal(sandbox):
    seen = []
    pty = sandbox.pty.create(e2b.PtySize(rows=24, cols=80), timeout=0)
    sandbox.pty.resize(pty.pid, e2b.PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit\n")
    try:
        pty.wait(on_pty=lambda data: seen.append(bytes(data)))
    except e2b.CommandExitException:
        pass
    assert b"30 100" in b"".join(seen), seen
    other = sandbox.pty.create(e2b.PtySize(rows=24, cols=80), timeout=0)
    assert sandbox.pty.kill(other.pid) is True


def test_previews(sandbox):
    server = sandbox.commands.run("cd /tmp && exec python3 -u -m http.server 8123", background=True)
    base, host = os.environ["E2B_SANDBOX_URL"], sandbox.get_host(8123)
    assert host.startswith(f"8123-{sandbox.sandbox_id}."), host
    assert until(lambda: fetch(base, host=host)[0] == 200, 30)
    assert b"Directory listing" in fetch(f"{base}/", host=host)[1]
    status, body = fetch(base, host=sandbox.get_host(8124))
    assert status == 502 and b"port is not open" in body, (status, body)
    sandbox.commands.kill(server.pid)


# The code interpreter


def test_code(sandbox):
    needs_code()
    execution = sandbox.run_code("import os\nprint('größe – 日本語')\nx = 20\nx + 1")
    assert execution.text == "21" and execution.logs.stdout == ["größe – 日本語\n"], execution
    assert sandbox.run_code("x * 2").text == "40"
    failed = sandbox.run_code("1 / 0")
    assert failed.error.name == "ZeroDivisionError" and "1 / 0" in failed.error.traceback
    assert sandbox.run_code("os.environ['ONLY']", envs={"ONLY": "once"}).text == "once"
    seen = []
    sandbox.run_code("for i in range(3): print(i)", on_stdout=lambda message: seen.append(message.line))
    assert "".join(seen).split() == ["0", "1", "2"], seen
    assert sandbox.run_code("console.log(6 * 7)", language="javascript").logs.stdout == ["42\n"]
    assert sandbox.run_code("echo $((6 * 7))", language="bash").logs.stdout == ["42\n"]
    # Debian's Node.js is too old, and the image has no R.
    error = sandbox.run_code("const n: number = 1", language="typescript").error
    assert error.name == "Error" and "TypeScript needs Node.js 22.13 or newer; this is v18" in error.value, error
    error = sandbox.run_code("1", language="r").error
    assert (error.name, error.value) == ("InterpreterUnavailable", "there is no program 'R'"), error


def test_plots(sandbox):
    needs_code()
    plot = sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [3, 1, 2])\nplt.title('t')\nplt.show()", timeout=120 * SLOWNESS)
    assert plot.error is None, plot.error
    assert plot.results and plot.results[0].png, plot


def test_contexts(sandbox):
    needs_code()
    context = sandbox.create_code_context(cwd="/tmp")
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    sandbox.run_code("only_here = 1", context=context)
    assert sandbox.run_code("only_here").error is not None
    if hasattr(sandbox, "list_code_contexts"):
        assert context.id in [one.id for one in sandbox.list_code_contexts()]
        sandbox.restart_code_context(context)
        assert sandbox.run_code("only_here", context=context).error is not None
        sandbox.remove_code_context(context)
        assert context.id not in [one.id for one in sandbox.list_code_contexts()]


def test_asynchronous(sandbox):
    async def work():
        one = await AsyncSandbox.create(timeout=300)
        try:
            assert (await one.commands.run("echo hello")).stdout == "hello\n"
            if CODE:
                assert (await one.run_code("6 * 7")).text == "42"
            await one.files.make_dir("/tmp/watched")
            seen = []
            watcher = await one.files.watch_dir("/tmp/watched", on_event=seen.append)
            await one.files.write("/tmp/watched/new", "x")
            for _ in range(int(100 * SLOWNESS)):
                if any(event.name == "new" for event in seen):
                    break
                await asyncio.sleep(0.1)
            assert any(event.name == "new" for event in seen), seen
            await watcher.stop()
        finally:
            assert await one.kill()

    asyncio.run(work())


def main():
    wanted = sys.argv[1:]
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    tests = [(name, test) for name, test in tests if not wanted or name in wanted]
    print(f"e2b {'.'.join(map(str, VERSION))}", flush=True)
    sandbox = Sandbox.create(timeout=1800, metadata={"run": RUN, "text": "grün & blau"}, envs={"FROM_CREATE": "set"})
    failed = []
    for name, test in tests:
        begun = time.monotonic()
        try:
            test(sandbox)
            outcome = "ok"
        except Skipped as reason:
            outcome = f"skipped: {reason}"
        except BaseException:
            traceback.print_exc()
            outcome = "FAILED"
            failed.append(name)
        print(f"{name} {outcome} ({time.monotonic() - begun:.1f} s)", flush=True)
    sandbox.kill()
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
