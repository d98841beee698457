"""A daemon with a snapshot `base`, whose guest only halts; and a sandbox with an agent, whose guest is this host."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import forkd
from forkd import AsyncController, AsyncSandbox, Controller, FileType, Sandbox, Snapshot, models


@pytest.fixture
def base(real: Controller) -> Iterator[Sandbox]:
    with Sandbox.create("base", metadata={"test": "base"}, controller=real) as sandbox:
        yield sandbox


@pytest.fixture
def agent(real: Controller) -> Sandbox:
    if "FORKD_TEST_SANDBOX" not in os.environ:
        pytest.skip("FORKD_TEST_SANDBOX names no sandbox")
    return Sandbox.connect(os.environ["FORKD_TEST_SANDBOX"], controller=real)


def test_a_life(real: Controller, base: Sandbox) -> None:
    assert base.is_running()
    assert base.get_info().metadata == {"test": "base"}
    assert base.info.end_at is not None
    assert base.id in [info.id for info in Sandbox.list(metadata={"test": "base"}, controller=real)]
    assert base.pause().state == "paused"
    assert not base.is_running()
    assert Sandbox.connect(base.id, controller=real).info.state == "running"
    assert base.stats().memory_shared_bytes >= 0
    assert isinstance(base.logs(), str)
    base.set_timeout(None)
    assert base.get_info().expires_at_unix is None
    base.set_timeout(50)
    base.extend_timeout(10)
    assert (base.get_info().expires_at_unix or 0) > time.time() + 30
    assert base.kill() is True
    # A second one within minutes is answered as the first.
    assert base.kill() is True
    with pytest.raises(forkd.NotFoundError):
        base.get_info()


def test_branches_and_forks(real: Controller, base: Sandbox) -> None:
    tag = f"branch-{uuid.uuid4().hex[:8]}"
    branch = base.branch(tag)
    assert branch.info.branched_from == base.id
    assert branch.info.pause_us is not None
    children = [*branch.fork(3, timeout=60), *base.fork(2, timeout=60)]
    assert len({child.id for child in children}) == 5
    base.rollback(branch)
    with pytest.raises(forkd.ConflictError) as taken:
        base.branch(tag)
    assert taken.value.code == "name_taken"
    for child in children:
        child.kill()
    kept = Snapshot.get(tag, controller=real)
    while kept.refresh().status != "ready":
        time.sleep(0.02)
    assert tag in [snapshot.tag for snapshot in Snapshot.list(controller=real)]
    base.kill()
    for snapshot in Snapshot.list(controller=real):
        if snapshot.tag != "base":
            snapshot.delete(cascade=True)
    with pytest.raises(forkd.NotFoundError):
        kept.refresh()


def test_chains(real: Controller, base: Sandbox) -> None:
    tag = f"chain-{uuid.uuid4().hex[:8]}"
    head = base.branch(tag, wait=True)
    history = head.history()
    assert [(entry.tag, entry.kind) for entry in history] == [("base", "full"), (tag, "diff")]
    verified = head.verify()
    assert (verified.intact, verified.snapshots, verified.damage) == (True, 2, None)
    name = f"name-{tag}"
    assert head.add_name(name).names == [name]
    with pytest.raises(forkd.ConflictError) as taken:
        real.add_snapshot_name("base", name)
    assert "force=True" in str(taken.value.hint)
    with pytest.raises(forkd.ConflictError):
        head.delete()
    assert Snapshot.get(name, controller=real).tag == tag
    assert head.remove_name(name).names == []
    assert head.compact().parent is None
    assert real.prune_snapshots(named=True, unused_seconds=3600, dry_run=True).snapshots == []
    with pytest.raises(forkd.InvalidArgumentError):
        real.create_snapshot(forkd.models.CreateSnapshot(snapshot="base", tag="new", vcpus=2))
    assert real.add_snapshot_name(tag, name).names == [name]
    assert real.delete_snapshot(name) == [name]
    assert head.delete() == [tag]


def test_builds(real: Controller) -> None:
    name = f"built-{uuid.uuid4().hex[:8]}"
    first = Snapshot.build(name, snapshot="base", controller=real)
    assert (first.info.names, first.info.parent) == ([name], "base")
    assert first.info.build_key
    assert Snapshot.build(name, snapshot="base", controller=real).tag == first.tag
    contents = forkd.models.CreateSnapshot(snapshot="base")
    again = real.build_snapshot(forkd.models.BuildSnapshot(name=name, contents=contents, dry_run=True))
    assert (again.outcome, again.key) == ("unchanged", first.info.build_key)
    fresh = Snapshot.build(name, snapshot="base", no_cache=True, controller=real)
    assert fresh.tag != first.tag
    assert first.refresh().names == []
    with pytest.raises(forkd.ConflictError):
        Snapshot.build("base", snapshot="base", controller=real)
    assert first.delete() == [first.tag]
    assert fresh.delete(all_names=True) == [fresh.tag]


def test_archives(real: Controller, tmp_path: Path) -> None:
    path, tag = tmp_path / "base.tar", f"loaded-{uuid.uuid4().hex[:8]}"
    Snapshot.get("base", controller=real).save(path)
    loaded = Snapshot.load(path, tag, controller=real)
    assert (loaded.tag, loaded.info.status) == (tag, "ready")
    (child,) = loaded.fork(1, timeout=60)
    child.kill()
    assert loaded.delete() == [tag]


def test_a_registry(real: Controller) -> None:
    if "FORKD_TEST_REGISTRY" not in os.environ:
        pytest.skip("FORKD_TEST_REGISTRY names no registry")
    repository, tag = f"{os.environ['FORKD_TEST_REGISTRY']}/python/app", f"pulled-{uuid.uuid4().hex[:8]}"
    base = Snapshot.get("base", controller=real)
    pushed = base.push(f"{repository}:base")
    assert pushed.sent_bytes > 0
    assert base.push(f"{repository}:base").sent_bytes == 0
    listed = Snapshot.list_repository(repository, controller=real)
    assert [(one.tag, one.snapshot) for one in listed.tags] == [("base", True)]
    assert real.resolve_snapshot(f"{repository}:base").digest in pushed.reference
    pulled = Snapshot.pull(f"{repository}:base", tag, controller=real)
    (child,) = pulled.fork(1, timeout=60)
    child.kill()
    assert pulled.delete() == [tag]
    with pytest.raises(forkd.ForkdError) as missing:
        Snapshot.pull(f"{repository}:none", controller=real)
    assert missing.value.code == "upstream_failed"


def test_what_names_mean_and_who_may_use_them(real: Controller, base: Sandbox) -> None:
    snapshot = real.resolve_name("base").snapshot
    assert snapshot is not None
    assert snapshot.tag == "base"
    sandbox = real.resolve_name(base.id).sandbox
    assert sandbox is not None
    assert sandbox.id == base.id
    with pytest.raises(forkd.NotFoundError):
        real.resolve_name("nothing")
    assert real.publish_snapshot("base").public
    assert not real.publish_snapshot("base", False).public


def test_refusals(real: Controller, base: Sandbox) -> None:
    with pytest.raises(forkd.NotFoundError) as missing:
        Sandbox.create("no-such-tag", controller=real)
    assert (missing.value.code, missing.value.status) == ("not_found", 404)
    assert missing.value.request_id
    with pytest.raises(forkd.InvalidArgumentError):
        real.spawn_sandboxes("base", n=0)
    with pytest.raises(forkd.ForkdError) as agentless:
        base.exec("true")
    assert agentless.value.code
    with pytest.raises(forkd.ForkdError) as interactive:
        base.commands.run("true")
    assert (interactive.value.code, bool(interactive.value.request_id)) == (agentless.value.code, True)
    with pytest.raises(forkd.NotFoundError):
        Snapshot.create("new", "no-such-image", controller=real)


def test_events(real: Controller) -> None:
    seen: list[forkd.models.Event] = []
    begun = threading.Event()

    def follow() -> None:
        with Controller(real.base_url) as other:
            events = other.events()
            begun.set()
            for event in events:
                seen.append(event)
                # The first may come in the middle of a sandbox's life.
                if event.event == "sandbox_removed" and any(one.event == "sandbox" for one in seen):
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    begun.wait()
    while thread.is_alive():
        with Sandbox.create("base", controller=real) as sandbox:
            pass
        thread.join(0.1)
    assert sandbox.id
    assert "sandbox" in [event.event for event in seen]


def test_about_the_daemon(real: Controller) -> None:
    assert real.health().ok
    assert real.version().api
    assert "forkd_" in real.metrics()
    assert real.problems() == []
    assert real.list_images() == []
    assert real.prune_images(images=True).images == 0
    assert [snapshot["tag"] for snapshot in real.list_snapshots()] == ["base"]


def test_commands(agent: Sandbox, tmp_path: Path) -> None:
    result = agent.commands.run(
        "echo $COLOUR; pwd; cat; echo err >&2", envs={"COLOUR": "blue"}, cwd=str(tmp_path), stdin="in\n"
    )
    assert (result.stdout, result.stderr, result.exit_code) == (f"blue\n{tmp_path}\nin\n", "err\n", 0)
    with pytest.raises(forkd.CommandExitException, match="ended with 7") as failed:
        agent.commands.run("echo before; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "before\n")
    heard: list[tuple[str, float]] = []
    agent.commands.run("echo one; sleep 0.4; echo two", on_stdout=lambda text: heard.append((text, time.monotonic())))
    assert [text for text, _ in heard] == ["one\n", "two\n"]
    assert heard[1][1] - heard[0][1] > 0.2
    with pytest.raises(forkd.TimeoutException):
        agent.commands.run("sleep 30", timeout=1)
    with pytest.raises(forkd.InvalidArgumentError):
        agent.commands.run("true", cwd="/no/such/directory")


def test_large_and_odd_output(agent: Sandbox) -> None:
    result = agent.commands.run("head -c 5000000 /dev/zero | tr '\\0' x; printf '\\377' >&2")
    assert (len(result.stdout), result.stderr) == (5_000_000, "�")
    many = agent.exec(["head", "-c", "3000000", "/dev/zero"], on_stdout=lambda _: None)
    assert len(many.stdout) == 3_000_000


def test_commands_in_the_background(agent: Sandbox) -> None:
    handle = agent.commands.run("read line; echo got $line; cat", background=True, stdin=True)
    assert handle.pid > 0
    handle.send_stdin("it\n")
    handle.send_stdin(b"x" * 600_000)
    handle.close_stdin()
    assert len(handle.wait().stdout) == 7 + 600_000
    assert handle.kill() is False
    told = agent.commands.run("echo out; echo err >&2", background=True)
    assert sorted(told, key=str) == [("out\n", None), (None, "err\n")]
    assert told.exit_code == 0
    endless = agent.commands.run(["sleep", "60"], background=True)
    assert endless.kill() is True
    assert endless.ended().exit_code == 137
    other = agent.commands.run("sleep 60", background=True)
    assert agent.commands.kill(other.pid)
    assert other.ended().exit_code != 0
    assert not agent.commands.kill(4_000_000)


def test_a_command_that_does_not_read_can_be_killed(agent: Sandbox) -> None:
    handle = agent.commands.run("echo ready; exec sleep 60", background=True, stdin=True)
    sending = threading.Thread(target=_send_much, args=(handle,))
    sending.start()
    time.sleep(0.5)
    assert sending.is_alive()
    assert handle.kill() is True
    assert handle.ended().exit_code == 137
    sending.join()
    assert handle.stdout == "ready\n"
    # Its output is read while it is written to: neither waits for the other.
    echo = agent.commands.run("cat", background=True, stdin=True)
    echo.send_stdin(b"x" * 8_000_000)
    echo.close_stdin()
    assert len(echo.wait().stdout) == 8_000_000


def _send_much(handle: forkd.CommandHandle) -> None:
    with contextlib.suppress(forkd.ConnectionFailedError):
        handle.send_stdin(b"x" * 8_000_000)


def test_a_program_goes_on_without_its_client(agent: Sandbox, tmp_path: Path) -> None:
    handle = agent.commands.run(f"sleep 0.3; echo alive > {tmp_path}/mark", background=True)
    handle.disconnect()
    with pytest.raises(forkd.ConnectionFailedError):
        handle.wait()
    while not agent.files.exists(f"{tmp_path}/mark"):
        time.sleep(0.02)


def test_a_terminal(agent: Sandbox) -> None:
    size = models.TerminalSize(cols=90, rows=30)
    shell = agent.commands.run(["/bin/sh"], background=True, stdin=True, tty=size)
    shell.send_stdin("stty size; read wait; stty size; exit\n")
    heard = ""
    for stdout, _ in shell:
        heard += stdout or ""
        if "30 90" in heard:
            break
    shell.resize(100, 40)
    shell.send_stdin("go\n")
    assert "40 100" in shell.wait().stdout


def test_exec(agent: Sandbox) -> None:
    assert agent.exec(["cat"], stdin="é").stdout == "é"
    assert agent.exec("exit 3").exit_code == 3
    assert agent.exec("sleep 30", timeout=1).timed_out
    heard: list[str] = []
    result = agent.exec("echo one; echo two >&2", on_stdout=heard.append, on_stderr=heard.append, check=True)
    assert (sorted(heard), result.stderr) == (["one\n", "two\n"], "two\n")


def test_files(agent: Sandbox, tmp_path: Path) -> None:
    files, path = agent.files, f"{tmp_path}/deep/new/file é.txt"
    info = files.write(path, "héllo\n")
    assert (info.path, info.type, info.size) == (path, FileType.FILE, 7)
    assert files.read(path) == "héllo\n"
    assert files.read(path, "bytes") == "héllo\n".encode()
    with open(__file__, "rb") as own:
        files.write(f"{tmp_path}/own", own)
    assert b"".join(files.read(f"{tmp_path}/own", "stream")) == Path(__file__).read_bytes()
    assert [entry.name for entry in files.list(str(tmp_path))] == ["deep", "own"]
    assert files.make_dir(f"{tmp_path}/a/b") is True
    assert files.make_dir(f"{tmp_path}/a/b") is False
    moved = files.rename(path, f"{tmp_path}/moved/there")
    assert (moved.name, files.exists(path)) == ("there", False)
    assert files.read(f"{tmp_path}/moved/there") == "héllo\n"
    files.write_files([{"path": f"{tmp_path}/1", "data": "1"}, {"path": f"{tmp_path}/2", "data": b"2"}])
    files.remove(f"{tmp_path}/moved")
    assert not files.exists(f"{tmp_path}/moved")
    with pytest.raises(forkd.FileNotFoundException) as missing:
        files.read(path)
    assert isinstance(missing.value, forkd.NotFoundException)
    with pytest.raises(forkd.FileError):
        files.read(str(tmp_path))
    with pytest.raises(forkd.NotFoundError):
        files.rename(path, "/tmp/x")


def test_trees_go_in_and_come_out(agent: Sandbox, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_text("text")
    agent.files.upload(str(tree), f"{tmp_path}/copy")
    agent.files.upload(str(tree / "below" / "file"), f"{tmp_path}/single")
    assert (tmp_path / "single").read_text() == "text"
    assert (tmp_path / "copy" / "below" / "file").read_text() == "text"
    archive = b"".join(agent.files.read_archive(f"{tmp_path}/copy"))
    agent.files.write_archive(f"{tmp_path}/again", archive)
    assert (tmp_path / "again" / "copy" / "below" / "file").read_text() == "text"


def test_code(agent: Sandbox) -> None:
    agent.eval("number = 20")
    assert agent.eval("number + 1") == "21"
    with pytest.raises(forkd.EvaluationError, match="ZeroDivisionError") as failed:
        agent.eval("1 / 0")
    assert "Traceback" in failed.value.traceback
    execution = agent.run_code("print('é'); number")
    assert (execution.text, execution.logs.stdout) == ("20", ["é\n"])
    error = agent.run_code("nothing").error
    assert error is not None
    assert error.name == "NameError"
    assert agent.run_code("echo $X", "bash", envs={"X": "1"}).logs.stdout == ["1\n"]


def test_ports(agent: Sandbox) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(418)
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        answer = agent.fetch(server.server_port, "/a?b=c")
    assert (answer.status_code, answer.text) == (418, "/a?b=c")
    closed = agent.fetch(1)
    assert (closed.status_code, closed.json()["code"]) == (502, "port_closed")


def test_pings(real: Controller, agent: Sandbox) -> None:
    assert real.ping_sandbox(agent.id)["pong"]
    assert real.exec_command(agent.id, ["echo", "x"])["stdout"] == "x\n"
    assert real.eval_code(agent.id, "6 * 7")["result"] == "42"


async def test_everything_at_once(real: Controller, agent: Sandbox) -> None:
    import asyncio

    async with AsyncController(real.base_url) as controller:
        sandbox = await AsyncSandbox.connect(agent.id, controller=controller)
        results = await asyncio.gather(*(sandbox.commands.run(f"sleep 0.2; echo {number}") for number in range(50)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(50)]
        handle = await sandbox.commands.run("cat", background=True, stdin=True)
        await handle.send_stdin("x")
        await handle.close_stdin()
        assert [told async for told in handle] == [("x", None)]
        echo = await sandbox.commands.run("wc -c", background=True, stdin=True)
        waiting = asyncio.create_task(echo.wait())
        await echo.send_stdin(b"x" * 3_000_000)
        await echo.close_stdin()
        assert (await waiting).stdout.strip() == "3000000"
        await sandbox.files.write("/tmp/forkd-sdk-test", "async")
        assert await sandbox.files.read("/tmp/forkd-sdk-test") == "async"
        await sandbox.files.remove("/tmp/forkd-sdk-test")
        children = await AsyncSandbox.create("base", controller=controller)
        async with children as child:
            twins = await child.fork(2, timeout=60)
            await asyncio.gather(*(twin.kill() for twin in twins))
        assert not await child.is_running()
