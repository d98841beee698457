"""What is sent, and what becomes of answers."""

from __future__ import annotations

import base64
import io
import socket
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Callable, Optional

import pytest

import fake
import forkd
from fake import CREATED, ID, SANDBOX, SNAPSHOT, answer, lines, refused
from forkd import AsyncController, AsyncSandbox, AsyncSnapshot, Controller, Sandbox, Snapshot, errors, models

IMAGE = {
    "id": "1",
    "names": ["app"],
    "shared": False,
    "created_at_unix": 1,
    "size_bytes": 1,
    "disk_bytes": 1,
    "default_user": "root",
    "source": {"kind": "build"},
    "layers": [],
    "config": {"env": {}, "entrypoint": [], "cmd": [], "labels": {}},
}
KERNEL = {
    "name": "6.1",
    "version": "6.1.0",
    "default": True,
    "shared": False,
    "created_at_unix": 1,
    "missing": [],
    "modules": [],
}


def connected(daemon: fake.Fake, controller: Controller) -> Sandbox:
    daemon.says(answer(SANDBOX))
    return Sandbox.connect(ID, controller=controller)


def test_a_request_shows_who_asks(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(answer(CREATED, 201))
    sandbox = Sandbox.create("base", metadata={"a": "1"}, envs={"X": "é"}, controller=controller)
    (asked,) = daemon.asked
    assert asked.line == "POST /v1/sandboxes"
    assert asked.json == {"snapshot_tag": "base", "ttl_secs": 300, "metadata": {"a": "1"}, "env": {"X": "é"}}
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["user-agent"].startswith("forkd-python/")
    assert asked.headers["accept-encoding"] == "identity"
    assert len(asked.headers["idempotency-key"]) == 36
    assert (sandbox.id, sandbox.info.vcpus) == (ID, 1)


@pytest.mark.parametrize(("code", "family"), errors.FAMILIES.items())
def test_a_refusal_is_an_exception(daemon: fake.Fake, code: str, family: type[forkd.ForkdError]) -> None:
    daemon.says(refused(418, code, "try again"))
    with Controller(daemon.address, retries=0) as controller, pytest.raises(family) as caught:
        controller.get_sandbox(ID)
    error = caught.value
    assert type(error) is family
    assert (error.code, error.status, error.request_id) == (code, 418, "r1")
    assert error.hint == (errors.TOKEN_HINT if code == "unauthorized" else "try again")
    assert f"it is {code}" in str(error)


def test_a_hint_is_in_words_of_this_client(daemon: fake.Fake, controller: Controller) -> None:
    for hint_code, hint in [("list_sandboxes", errors.HINTS["list_sandboxes"]), ("free_disk", "text"), ("tea", "text")]:
        daemon.says(refused(404, "not_found", "text", hint_code))
        with pytest.raises(forkd.NotFoundError) as caught:
            controller.get_sandbox(ID)
        assert (caught.value.hint, caught.value.hint_code) == (hint, hint_code)


def test_a_refusal_of_the_future_is_one_too(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(refused(418, "teapot"))
    with pytest.raises(forkd.ForkdError) as caught:
        controller.version()
    assert (type(caught.value), caught.value.code) == (forkd.ForkdError, "teapot")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"[" * 100_000, b'{"error": 7}', b"\xff", b""])
def test_who_is_no_daemon_is_found_out(daemon: fake.Fake, controller: Controller, body: bytes) -> None:
    for status in [200, 404]:
        daemon.says(fake.Answer(status, body))
        with pytest.raises(forkd.ProtocolError):
            controller.version()


def test_what_may_be_repeated_is(daemon: fake.Fake, controller: Controller) -> None:
    gone, busy = fake.Answer(cut=True), refused(503, "unavailable")
    daemon.says(gone, busy, answer(CREATED, 201))
    Sandbox.create("base", controller=controller)
    keys = {asked.headers["idempotency-key"] for asked in daemon.asked}
    assert (len(daemon.asked), len(keys)) == (3, 1)
    # An answer that breaks off is none.
    daemon.says(fake.Answer(200, b'{"ok"', cut=True), answer({"ok": True}))
    assert controller.health().ok
    daemon.says(busy)
    with pytest.raises(forkd.ServerError):
        controller.health()


def test_what_may_not_be_repeated_is_not(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    daemon.asked.clear()
    daemon.says(refused(503, "unavailable"))
    requests: list[Callable[[], object]] = [
        lambda: sandbox.exec("true"),
        lambda: sandbox.eval("1"),
        lambda: sandbox.rollback("x"),
        lambda: sandbox.files.write("/x", "x"),
    ]
    for once in requests:
        with pytest.raises(forkd.ServerError):
            once()
    assert len(daemon.asked) == 4
    daemon.says(refused(429, "too_many"))
    with pytest.raises(forkd.CapacityError):
        sandbox.get_info()
    assert len(daemon.asked) == 5


def test_no_daemon_is_said_to_be_none(clean: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    for address in [closed, "unix:///nonexistent/forkd.sock"]:
        with Controller(address) as controller, pytest.raises(forkd.ConnectionFailedError, match="forkd serve") as caught:
            controller.health()
        assert caught.value.__cause__ is not None


def test_a_daemon_that_says_nothing(clean: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        controller = Controller(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
        with controller, pytest.raises(forkd.RequestTimeoutError, match="did not answer in time"):
            controller.health()


def test_proxies_of_the_environment_are_not_for_the_daemon(
    daemon: fake.Fake, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    daemon.says(answer({"ok": True}))
    assert controller.health().ok


def test_output_comes_in_pieces(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    euro = "€".encode()
    said = [b"one\n", euro[:1], euro[1:], b"\xff"]
    events = [{"stdout": base64.b64encode(piece).decode()} for piece in said]
    daemon.says(lines({"started": {"pid": 7}}, *events, {"stderr": "IQ=="}, {"exited": {"exit_code": 3, "timed_out": False}}))
    heard: list[str] = []
    result = sandbox.exec(["tool", "x"], on_stdout=heard.append, timeout=0.5)
    assert (result.stdout, result.stderr, result.exit_code) == ("one\n€�", "!", 3)
    assert heard == ["one\n", "€", "�"]
    asked = daemon.asked[-1]
    assert asked.json == {"args": ["tool", "x"], "timeout_secs": 1}
    assert asked.headers["accept"] == "application/x-ndjson"


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([{"error": {"error": "gone", "code": "guest_failed"}}], forkd.GuestError),
        ([{"started": {"pid": 7}}], forkd.ConnectionFailedError),
        ([{"stdout": "no base64"}], forkd.ProtocolError),
        (["word"], forkd.ProtocolError),
    ],
)
def test_output_without_an_end(daemon: fake.Fake, controller: Controller, events: list[object], kind: type[Exception]) -> None:
    sandbox = connected(daemon, controller)
    daemon.says(lines(*events))
    with pytest.raises(kind):
        sandbox.exec("x", on_stdout=print)


def test_a_command_that_fails(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    ended = {"stdout": "", "stderr": "a\nno such file\n", "exit_code": 2, "timed_out": False, "truncated": False}
    daemon.says(answer(ended))
    assert sandbox.exec("x").exit_code == 2
    with pytest.raises(forkd.CommandExitException, match="ended with 2: no such file") as failed:
        sandbox.exec("x", check=True)
    assert failed.value.exit_code == 2
    daemon.says(answer({**ended, "timed_out": True}))
    with pytest.raises(forkd.TimeoutException, match="within 30 s"):
        sandbox.exec("x", check=True)


def test_times(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    daemon.says(answer({"stdout": "", "stderr": "", "exit_code": 0, "timed_out": False, "truncated": False}))
    for timeout, expected in [(0, 86400), (None, 86400), (0.1, 1), (30.5, 31), (1e9, 86400)]:
        sandbox.exec("x", timeout=timeout)
        assert daemon.asked[-1].json.get("timeout_secs", 30) == expected


def test_a_block_that_fails_says_why_it_failed(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    daemon.says(refused(500, "internal"))
    with pytest.raises(ZeroDivisionError), sandbox:
        raise ZeroDivisionError
    with pytest.raises(forkd.ServerError), sandbox:
        pass


def test_progress_is_told(daemon: fake.Fake, controller: Controller) -> None:
    heard: list[models.Progress] = []
    daemon.says(lines({"step": "boot"}, {"output": "warm"}, {"snapshot": SNAPSHOT}))
    made = Snapshot.create("base", "debian", warm_up="import numpy", on_progress=heard.append, controller=controller)
    assert made.tag == "base"
    assert [event.step or event.output for event in heard] == ["boot", "warm"]
    assert daemon.asked[-1].json["warm_up"] == [{"code": "import numpy", "language": "python"}]
    daemon.says(lines({"step": "boot"}, {"error": {"error": "no such image", "code": "not_found"}}))
    with pytest.raises(forkd.NotFoundError, match="no such image") as missing:
        Snapshot.create("base", "debian", controller=controller)
    assert missing.value.request_id == "r2"
    daemon.says(lines({"step": "boot"}))
    with pytest.raises(forkd.ProtocolError, match="last word"):
        Snapshot.create("base", "debian", controller=controller)


def test_what_a_snapshot_is_made_of(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(lines({"snapshot": SNAPSHOT}))
    Snapshot.create("base", "debian", cpu="x86-64-v2", host_certs=True, e2b=True, controller=controller)
    asked = daemon.asked[-1].json
    assert asked == {"image": "debian", "tag": "base", "cpu": "x86-64-v2", "host_certs": True, "e2b": True}
    daemon.says(lines({"built": {"name": "app", "outcome": "made", "snapshot": SNAPSHOT}}))
    Snapshot.build("app", image="debian", cpu="host", e2b=True, controller=controller)
    assert daemon.asked[-1].json == {"name": "app", "contents": {"image": "debian", "cpu": "host", "e2b": True}}


def test_what_an_administrator_does(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(lines({"step": "unpacking"}, {"image": IMAGE}))
    heard: list[models.LibraryProgress] = []
    assert controller.import_image(io.BytesIO(b"layers"), "app", size_mib=64, on_progress=heard.append).names == ["app"]
    asked = daemon.asked[-1]
    assert (asked.line, asked.body) == ("POST /v1/images/import?name=app&size_mib=64", b"layers")
    assert [told.step for told in heard] == ["unpacking"]
    daemon.says(answer({"steps": 2, "images": 1, "freed_bytes": 3}))
    assert controller.prune_images(keep_mib=5, images=True).freed_bytes == 3
    assert daemon.asked[-1].json == {"keep_mib": 5, "images": True}
    daemon.says(answer(IMAGE))
    controller.publish_image("app", False)
    assert (daemon.asked[-1].line, daemon.asked[-1].json) == ("PUT /v1/images/app/public", {"public": False})
    daemon.says(answer(SANDBOX))
    controller.set_sandbox_bandwidth(ID, 7)
    assert (daemon.asked[-1].line, daemon.asked[-1].json) == (f"PUT /v1/sandboxes/{ID}/bandwidth", {"bandwidth_mib": 7})
    daemon.says(answer({"problems": [{"path": "/x", "reason": "damaged"}]}))
    assert [(one.path, one.reason) for one in controller.problems()] == [("/x", "damaged")]

    daemon.says(lines({"step": "fetching"}, {"kernel": KERNEL}))
    assert controller.add_kernel(version="6.1", default=True).name == "6.1"
    assert daemon.asked[-1].json == {"version": "6.1", "default": True}
    assert controller.import_kernel([b"one ", b"two"], default=True).name == "6.1"
    assert (daemon.asked[-1].line, daemon.asked[-1].body) == ("POST /v1/kernels/import?default=true", b"one two")
    assert daemon.asked[-1].headers["content-type"] == "application/x-tar"
    daemon.says(answer(KERNEL))
    assert controller.choose_kernel("6.1").default
    assert (daemon.asked[-1].line, daemon.asked[-1].json) == ("PUT /v1/kernels/default", {"kernel": "6.1"})
    removed = controller.remove_kernel("6.1", force=True)
    assert removed is not None
    assert (removed.name, daemon.asked[-1].line) == ("6.1", "DELETE /v1/kernels/6.1?force=true")
    daemon.says(fake.Answer(204))
    assert controller.remove_kernel("6.1") is None


def test_a_snapshot_goes_through_a_file(daemon: fake.Fake, controller: Controller, tmp_path: Path) -> None:
    snapshot = Snapshot(controller, models.SnapshotInfo.from_json(SNAPSHOT))
    path = tmp_path / "base.tar"
    daemon.says(fake.Answer(200, [b"one ", b"two"]))
    snapshot.save(path)
    asked = daemon.asked[-1]
    assert (asked.line, asked.headers["accept"]) == ("GET /v1/snapshots/base/archive", "application/x-tar")
    assert path.read_bytes() == b"one two"
    assert b"".join(snapshot.archive()) == b"one two"
    # It has the memory of a guest: it is for its owner, whatever was left under its names before.
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    (tmp_path / "other").write_bytes(b"other")
    Path(f"{path}.part").symlink_to(tmp_path / "other")
    snapshot.save(path)
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (0o600, b"one two")
    assert (tmp_path / "other").read_bytes() == b"other"
    (tmp_path / "other").unlink()
    # What breaks off leaves what was there.
    daemon.says(fake.Answer(200, b"three", cut=True))
    with pytest.raises(forkd.ConnectionFailedError):
        snapshot.save(path)
    assert (path.read_bytes(), len(list(tmp_path.iterdir()))) == (b"one two", 1)

    for archive in [str(path), io.BytesIO(b"one two"), [b"one ", b"two"]]:
        daemon.says(lines({"step": "reading the archive"}, {"snapshot": SNAPSHOT}))
        heard: list[models.LibraryProgress] = []
        assert Snapshot.load(archive, "other", on_progress=heard.append, controller=controller).tag == "base"
        asked = daemon.asked[-1]
        assert (asked.line, asked.body) == ("POST /v1/snapshots/load?tag=other", b"one two")
        assert asked.headers["content-type"] == "application/octet-stream"
        assert [told.step for told in heard] == ["reading the archive"]


def test_a_snapshot_goes_through_a_registry(daemon: fake.Fake, controller: Controller) -> None:
    reference = "registry.example/team/app:warm"
    credentials = models.Credentials(username="me", password="secret")
    heard: list[models.LibraryProgress] = []
    daemon.says(lines({"transfer": {"done_bytes": 1, "total_bytes": 4}}, {"snapshot": SNAPSHOT}))
    snapshot = Snapshot.pull(reference, reuse=True, credentials=credentials, on_progress=heard.append, controller=controller)
    asked = daemon.asked[-1]
    assert asked.line == "POST /v1/snapshots/pull"
    assert asked.json == {
        "reference": reference,
        "reuse": True,
        "credentials": {"username": "me", "password": "secret"},
    }
    assert len(asked.headers["idempotency-key"]) == 36
    assert heard[0].transfer == models.Transfer(done_bytes=1, total_bytes=4)

    pushed = {"reference": "registry.example/team/app@sha256:00", "sent_bytes": 5, "present_bytes": 6}
    daemon.says(lines({"step": "pushing"}, {"pushed": pushed}))
    assert snapshot.push(reference, yes=True, mount_from=["team/base"]).sent_bytes == 5
    asked = daemon.asked[-1]
    assert asked.line == "POST /v1/snapshots/base/push"
    assert asked.json == {"reference": reference, "yes": True, "mount_from": ["team/base"]}
    daemon.says(lines({"pushed": pushed}))
    snapshot.push(reference, variant="v3")
    assert daemon.asked[-1].json == {"reference": reference, "variant": "v3"}
    daemon.says(lines({"error": {"error": "of a sandbox", "code": "wrong_state"}}))
    with pytest.raises(forkd.ForkdError, match="of a sandbox"):
        snapshot.push(reference)
    daemon.says(lines({"snapshot": SNAPSHOT}))
    with pytest.raises(forkd.ProtocolError, match="something else"):
        snapshot.push(reference)

    tag = {"tag": "warm", "digest": "sha256:00", "snapshot": True, "size_bytes": 7}
    daemon.says(answer({"repository": "registry.example/team/app", "tags": [tag], "truncated": False}))
    listed = Snapshot.list_repository("registry.example/team/app", controller=controller)
    assert [(tag.tag, tag.size_bytes, tag.created_at_unix) for tag in listed.tags] == [("warm", 7, None)]
    assert daemon.asked[-1].line == "POST /v1/snapshots/repository"
    assert daemon.asked[-1].json == {"repository": "registry.example/team/app"}


async def test_a_snapshot_travels_for_who_waits(daemon: fake.Fake, tmp_path: Path) -> None:
    path = tmp_path / "base.tar"
    async with AsyncController(daemon.address) as controller:
        snapshot = AsyncSnapshot(controller, models.SnapshotInfo.from_json(SNAPSHOT))
        daemon.says(fake.Answer(200, [b"one ", b"two"]))
        await snapshot.save(path)
        assert path.read_bytes() == b"one two"
        daemon.says(lines({"snapshot": SNAPSHOT}))
        assert (await AsyncSnapshot.load(path, controller=controller)).tag == "base"
        assert (daemon.asked[-1].line, daemon.asked[-1].body) == ("POST /v1/snapshots/load", b"one two")
        assert (await AsyncSnapshot.pull("registry.example/app:x", controller=controller)).tag == "base"
        assert daemon.asked[-1].json == {"reference": "registry.example/app:x"}


def test_a_directory_is_sent_to_be_built(daemon: fake.Fake, controller: Controller, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    daemon.says(lines({"step": "RUN"}, {"output": "x"}, {"image": IMAGE}))
    heard: list[models.LibraryProgress] = []
    assert controller.build_image(str(tmp_path), name="app", on_progress=heard.append).names == ["app"]
    assert [told.step or told.output for told in heard] == ["RUN", "x"]
    asked = daemon.asked[-1]
    assert (asked.line, asked.headers["content-type"]) == ("POST /v1/images/build?name=app", "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(asked.body)) as tar:
        assert tar.getnames() == [".", "./Dockerfile"]
    daemon.says(lines({"error": {"error": "RUN failed", "code": "build_failed"}}))
    with pytest.raises(forkd.BuildError, match="RUN failed"):
        controller.build_image(str(tmp_path))


def test_code_has_results(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    shown = [{"image/png": "AAAA"}, {"text/plain": "7", "application/json": "7"}]
    daemon.says(answer({"result": "7", "results": shown, "stdout": "out", "stderr": "", "truncated": False}))
    heard: list[str] = []
    execution = sandbox.run_code("x", on_stdout=heard.append)
    assert (execution.text, execution.logs.stdout, heard, execution.error) == ("7", ["out"], ["out"], None)
    assert [result.is_main_result for result in execution.results] == [False, True]
    assert (execution.results[0].png, execution.results[1].json) == ("AAAA", 7)
    failed = {"name": "NameError", "value": "x", "traceback": "…"}
    daemon.says(answer({"results": [], "stdout": "", "stderr": "", "truncated": False, "error": failed}))
    with pytest.raises(forkd.EvaluationError, match="NameError: x"):
        sandbox.eval("x")
    error = sandbox.run_code("x").error
    assert error is not None
    assert error.name == "NameError"


def test_code_comes_line_by_line(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    ended = {"ended": {"timed_out": False, "truncated": False}}
    shown = [
        {"result": {"data": {"image/png": "AAAA"}, "main": False}},
        {"result": {"data": {"text/plain": "7"}, "main": True}},
    ]
    daemon.says(streamed({"stdout": "out"}, {"stderr": "err"}, *shown, ended))
    heard: list[object] = []
    execution = sandbox.run_code("x", on_stdout=heard.append, on_result=lambda result: heard.append(list(result.formats)))
    assert heard == ["out", ["image/png"], ["text/plain"]]
    assert (execution.text, execution.logs.stderr, execution.error) == ("7", ["err"], None)
    assert daemon.asked[-1].headers["accept"] == "application/x-ndjson"
    daemon.says(streamed({"raised": {"name": "NameError", "value": "x", "traceback": "…"}}, ended))
    assert (sandbox.run_code("x", on_error=heard.append).error or heard) is heard[-1]
    daemon.says(streamed({"stdout": "before"}, {"ended": {"timed_out": True, "truncated": False}}))
    with pytest.raises(forkd.GuestTimeoutError, match="within 300 s") as late:
        sandbox.run_code("x")
    assert isinstance(late.value, forkd.EvaluationTimeoutError)
    assert late.value.execution.logs.stdout == ["before"]
    daemon.says(streamed({"error": {"error": "gone", "code": "sandbox_ended"}}))
    with pytest.raises(forkd.ConflictError):
        sandbox.run_code("x")
    daemon.says(streamed({"stdout": "before"}))
    with pytest.raises(forkd.ConnectionFailedError):
        sandbox.run_code("x")
    daemon.says(answer({"results": [], "stdout": "before", "stderr": "", "truncated": False, "timed_out": True}))
    with pytest.raises(forkd.EvaluationTimeoutError):
        sandbox.eval("x")


def streamed(*values: object) -> fake.Answer:
    told = lines(*values)
    return fake.Answer(told.status, told.body, {**told.headers, "content-type": "application/x-ndjson"})


def test_contexts_and_processes(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    context = {"id": "c1", "language": "python", "cwd": "/", "busy": False}
    daemon.says(answer([context]))
    assert [it.id for it in sandbox.contexts.list()] == ["c1"]
    daemon.says(answer(context, 201))
    made = sandbox.contexts.create(cwd="/srv")
    assert daemon.asked[-1].json == {"language": "python", "cwd": "/srv"}
    daemon.says(answer({"restarted": True}))
    assert sandbox.contexts.interrupt(made, grace=1) is True
    asked = daemon.asked[-1]
    assert (asked.line, asked.json) == (f"POST /v1/sandboxes/{ID}/contexts/c1/interrupt", {"grace_secs": 1})
    daemon.says(fake.Answer(204))
    sandbox.contexts.restart("c1")
    sandbox.contexts.remove(made)
    assert daemon.asked[-1].line == f"DELETE /v1/sandboxes/{ID}/contexts/c1"
    daemon.says(answer([{"pid": 7, "args": ["sleep"], "tty": False}]))
    assert [process.pid for process in sandbox.commands.list()] == [7]
    daemon.says(answer({"pid": 8}, 201))
    assert sandbox.commands.start(["sleep", "9"], cwd="/") == 8
    assert daemon.asked[-1].json == {"args": ["sleep", "9"], "cwd": "/"}
    daemon.says(fake.Answer(204))
    sandbox.commands.send_stdin(8, "é")
    assert (daemon.asked[-1].line, daemon.asked[-1].body) == (f"POST /v1/sandboxes/{ID}/processes/8/stdin", "é".encode())
    sandbox.commands.close_stdin(8)
    assert daemon.asked[-1].line == f"POST /v1/sandboxes/{ID}/processes/8/stdin?close=true"
    assert sandbox.commands.kill(8) is True
    assert daemon.asked[-1].json == {"signal": "SIGKILL"}
    daemon.says(refused(404, "not_found"))
    assert sandbox.commands.kill(8) is False
    daemon.says(answer({}))
    with pytest.raises(forkd.ProtocolError):
        sandbox.commands.list()


def test_directories_come_in_pages(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    known = {"kind": "file", "size": 1, "mode": 420, "owner": "u", "group": "u", "modified_unix": 1}

    def page(*names: str, next: Optional[str] = None) -> fake.Answer:
        files = [{**known, "name": name, "path": f"/d/{name}"} for name in names]
        return answer({"files": files, "truncated": next is not None, "next": next})

    daemon.asked.clear()
    daemon.says(page("a", "b", next="b"), page("c"))
    assert [file.name for file in sandbox.files.list("/d")] == ["a", "b", "c"]
    assert [asked.line.split("?")[1] for asked in daemon.asked] == ["path=%2Fd", "path=%2Fd&after=b"]
    daemon.says(page("a", "b", next="b"))
    assert len(sandbox.files.list("/d", limit=3)) == 3


def test_events_continue_where_they_were(daemon: fake.Fake, controller: Controller) -> None:
    def event(cursor: str) -> dict[str, object]:
        return {"event": "sandbox_removed", "id": ID, "at_unix_ms": 1, "cursor": cursor}

    broken = fake.Answer(200, b'{"event": "sandbox_removed", "id": "i", "at_unix_ms": 1, "cursor": "2"}\n', cut=True)
    daemon.says(lines(event("1")), broken, fake.Answer(cut=True), lines(event("3")))
    seen: list[Optional[str]] = []
    for told in controller.events(sandbox=[ID, "other"], event="sandbox_removed"):
        seen.append(told.cursor)
        if len(seen) == 3:
            break
    assert seen == ["1", "2", "3"]
    picked = f"sandbox={ID}&sandbox=other&event=sandbox_removed"
    asked = [asked.line.split("?")[1] for asked in daemon.asked]
    assert asked == [picked, f"after=1&{picked}", f"after=2&{picked}", f"after=2&{picked}"]
    # Without cursors, the end is the end.
    daemon.says(lines({"event": "sandbox_removed", "id": ID, "at_unix_ms": 1}))
    assert len(list(controller.events())) == 1


@pytest.mark.parametrize("dropped", [lines(), fake.Answer(200, b"", cut=True), fake.Answer(200, b" ", cut=True)])
def test_events_end_without_any_event(daemon: fake.Fake, controller: Controller, dropped: fake.Answer) -> None:
    event = {"event": "sandbox_removed", "id": ID, "at_unix_ms": 1, "cursor": "1"}
    # The last event counts, and not that the daemon has answered.
    daemon.says(lines(event), dropped, lines(event), dropped)
    seen: list[models.Event] = []
    with pytest.raises(errors.ConnectionFailedError):
        seen.extend(controller.events())
    assert (len(seen), len(daemon.asked)) == (2, 5)
    once = Controller(daemon.address, "secret", retries=0)
    with once, pytest.raises(errors.ConnectionFailedError):
        list(once.events(after="1"))
    assert len(daemon.asked) == 6


def test_reading_is_repeated_until_the_answer_begins(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    daemon.says(fake.Answer(cut=True), refused(503, "unavailable"), fake.Answer(200, [b"one ", b"two"]))
    assert b"".join(sandbox.files.read("f", "stream")) == b"one two"
    daemon.says(fake.Answer(200, b"one", cut=True))
    with pytest.raises(forkd.ConnectionFailedError):
        b"".join(sandbox.files.read("f", "stream"))


def test_what_was_removed_a_moment_ago_is_removed(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    daemon.says(fake.Answer(204))
    assert sandbox.kill() is True
    assert controller.delete_snapshot("base") == []
    assert controller.remove_image("base") is None


def test_forks_of_sandboxes_and_of_snapshots_are_one_request(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    snapshot = Snapshot(controller, models.SnapshotInfo.from_json(SNAPSHOT))
    daemon.says(answer({**CREATED, "sandboxes": [SANDBOX, SANDBOX]}, 201))
    limits = models.Limits(memory_mib=64)
    for source, named in [(sandbox, {"from_sandbox": ID}), (snapshot, {"snapshot_tag": "base"})]:
        assert len(source.fork(2, timeout=60, limits=limits)) == 2  # type: ignore[attr-defined]
        assert daemon.asked[-1].json == {**named, "n": 2, "ttl_secs": 60, "limits": {"memory_mib": 64}}


def test_files_go_as_they_are(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    info = {
        "name": "f",
        "path": "/a b/f",
        "kind": "file",
        "size": 1,
        "mode": 420,
        "owner": "u",
        "group": "u",
        "modified_unix": 1,
    }
    daemon.says(lambda asked: fake.Answer(204) if asked.line.startswith("PUT") else answer(info))
    contents = ["é", b"\xff\x00", io.BytesIO(b"x" * 600_000), [b"1", b"2"]]
    for content in contents:
        sandbox.files.write("/a b/f", content, user="u")
    sent = [asked for asked in daemon.asked if asked.line.startswith("PUT")]
    assert [asked.body for asked in sent] == ["é".encode(), b"\xff\x00", b"x" * 600_000, b"12"]
    assert {asked.line for asked in sent} == {f"PUT /v1/sandboxes/{ID}/files?path=%2Fa%20b%2Ff&user=u"}
    daemon.says(fake.Answer(200, [b"h\xc3", b"\xa9"]))
    assert sandbox.files.read("f") == "hé"
    assert sandbox.files.read("f", "bytes") == "hé".encode()
    assert b"".join(sandbox.files.read("f", "stream")) == "hé".encode()
    daemon.says(refused(404, "file_not_found"))
    assert not sandbox.files.exists("f")
    # A sandbox that is not there is no answer to that.
    daemon.says(refused(404, "not_found"))
    with pytest.raises(forkd.NotFoundException):
        sandbox.files.exists("f")
    assert sandbox.kill() is False
    assert sandbox.is_running() is False


def test_lists_come_in_pages(daemon: fake.Fake, controller: Controller) -> None:
    ended = {**SANDBOX, "state": "ended"}
    daemon.says(answer({"sandboxes": [SANDBOX, ended], "next": "n"}), answer({"sandboxes": [SANDBOX]}))
    pages = Sandbox.list(metadata={"a": "1", "b": "2"}, limit=2, controller=controller)
    assert [info.id for info in pages] == [ID, ID]
    assert not pages.has_next
    assert [asked.line for asked in daemon.asked] == [
        "GET /v1/sandboxes?metadata=a%3D1&limit=2",
        "GET /v1/sandboxes?metadata=a%3D1&limit=2&after=n",
    ]
    daemon.says(answer({"sandboxes": [SANDBOX]}))
    assert Sandbox.list(metadata={"b": "3"}, controller=controller).next_items() == []


def test_connect_only_extends(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(answer({**SANDBOX, "expires_at_unix": 1 << 40}))
    Sandbox.connect(ID, timeout=60, controller=controller)
    assert [asked.line.split()[0] for asked in daemon.asked] == ["GET", "GET"]
    daemon.asked.clear()
    daemon.says(answer({**SANDBOX, "state": "paused", "expires_at_unix": 1}))
    Sandbox.connect(ID, timeout=60, controller=controller)
    assert [asked.line.rsplit("/", 1)[1] for asked in daemon.asked] == [ID, "resume", ID, "ttl"]
    assert daemon.asked[-1].json == {"ttl_secs": 60}


def test_what_happens_when_a_sandbox_expires(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(answer(CREATED, 201))
    expiry = {"on_expiry": "pause", "wake_on_traffic": True}
    sandbox = Sandbox.create("base", on_expiry="pause", wake_on_traffic=True, controller=controller)
    sandbox.fork(on_expiry="pause", wake_on_traffic=True)
    snapshot = Snapshot(controller, models.SnapshotInfo.from_json(SNAPSHOT))
    snapshot.fork(on_expiry="pause", wake_on_traffic=True)
    sources = [{"snapshot_tag": "base"}, {"from_sandbox": ID}, {"snapshot_tag": "base"}]
    assert [asked.json for asked in daemon.asked] == [{**source, "ttl_secs": 300, **expiry} for source in sources]


def test_names_do_not_lead_elsewhere(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(refused(404, "not_found"))
    with pytest.raises(forkd.NotFoundError):
        controller.get_sandbox("../snapshots?x=#é")
    assert daemon.asked[-1].line == "GET /v1/sandboxes/..%2Fsnapshots%3Fx%3D%23%C3%A9"
    for name in ["", ".", ".."]:
        with pytest.raises(forkd.InvalidArgumentError):
            controller.get_snapshot(name)


def test_ports_have_addresses(daemon: fake.Fake, controller: Controller) -> None:
    sandbox = connected(daemon, controller)
    assert sandbox.proxy_url(8000, "/a?b=c") == f"{daemon.address}/v1/sandboxes/{ID}/proxy/8000/a?b=c"
    daemon.says(fake.Answer(404, b"the guest's own", {"x": "y"}))
    got = sandbox.fetch(8000, "/a", method="POST", content=b"body", headers={"k": "v"})
    assert (got.status_code, got.text, got.headers["x"]) == (404, "the guest's own", "y")
    assert (daemon.asked[-1].body, daemon.asked[-1].headers["k"]) == (b"body", "v")
    with pytest.raises(forkd.InvalidArgumentError):
        sandbox.proxy_url(0)
    with Controller("unix:///x") as other, pytest.raises(forkd.InvalidArgumentError, match="fetch"):
        Sandbox(other, sandbox.info).proxy_url(80)


def test_signatures_are_made_elsewhere(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(answer({"repository": "registry.example/a", "digest": "sha256:00"}))
    assert controller.resolve_snapshot("registry.example/a:v1").digest == "sha256:00"
    assert daemon.asked[-1].line == "POST /v1/snapshots/resolve"
    assert daemon.asked[-1].json == {"reference": "registry.example/a:v1"}
    reference = "registry.example/a@sha256:00"
    daemon.says(answer({"reference": reference, "key": "0123", "added": True}, 201))
    assert controller.add_snapshot_signature(reference, payload="{}", signature="MA==", key="PEM").added
    assert daemon.asked[-1].line == "POST /v1/snapshots/signatures"
    assert daemon.asked[-1].json == {"reference": reference, "payload": "{}", "signature": "MA==", "key": "PEM"}


def test_the_references_names(daemon: fake.Fake, controller: Controller) -> None:
    daemon.says(answer(CREATED, 201))
    made = controller.spawn_sandboxes("base", 2, per_child_netns=True, memory_limit_mib=64, live_fork=True)
    assert made[0]["id"] == ID
    assert daemon.asked[-1].json == {"snapshot_tag": "base", "n": 2, "limits": {"memory_mib": 64}}
    daemon.says(answer(SNAPSHOT, 201))
    assert controller.branch_sandbox(ID, "half", mode="live")["tag"] == "base"
    assert daemon.asked[-1].json == {"tag": "half", "wait": True}
    daemon.says(refused(409, "has_dependents"))
    with pytest.raises(forkd.ControllerError) as caught:
        controller.delete_snapshot("base")
    assert caught.value.status == 409


async def test_the_asynchronous_client_is_the_same(daemon: fake.Fake, async_controller: AsyncController) -> None:
    daemon.says(fake.Answer(cut=True), answer(CREATED, 201))
    async with await AsyncSandbox.create("base", controller=async_controller) as sandbox:
        heard: list[str] = []

        async def hear(text: str) -> None:
            heard.append(text)

        daemon.says(lines({"stdout": "YQ=="}, {"exited": {"exit_code": 0, "timed_out": False}}))
        assert (await sandbox.exec("x", on_stdout=hear)).stdout == "a"
        assert heard == ["a"]

        async def pieces() -> AsyncIterator[bytes]:
            yield b"1"
            yield b"2"

        daemon.says(fake.Answer(204))
        await sandbox.files.write_archive("/d", pieces())
        assert daemon.asked[-1].body == b"12"
        daemon.says(answer({"sandboxes": [SANDBOX]}))
        assert [info.id async for info in AsyncSandbox.list(controller=async_controller)] == [ID]
        daemon.says(refused(403, "forbidden"))
        with pytest.raises(forkd.ForbiddenError):
            await sandbox.pause()
        daemon.says(fake.Answer(204))
    assert daemon.asked[-1].line == f"DELETE /v1/sandboxes/{ID}"
