"""Real guests: a snapshot FORKD_TEST_SNAPSHOT of the image FORKD_TEST_IMAGE, with numpy imported and `state = ['parent']`.

The daemon is the one that FORKD_ADDRESS names, as it is for users. A guest in an emulator is slow.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Iterator

import pytest

import forkd
from forkd import AsyncSandbox, Egress, Sandbox, Snapshot, models

SNAPSHOT = os.environ.get("FORKD_TEST_SNAPSHOT", "")
IMAGE = os.environ.get("FORKD_TEST_IMAGE", "")

pytestmark = pytest.mark.skipif(not SNAPSHOT, reason="FORKD_TEST_SNAPSHOT names no snapshot")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create(SNAPSHOT, timeout=1800) as it:
        yield it


def test_children_have_what_their_parent_had() -> None:
    children = Snapshot.get(SNAPSHOT).fork(10, timeout=1800)
    try:
        answers = [
            child.eval(f"state.append({number}); (numpy.zeros(3).tolist(), state)") for number, child in enumerate(children)
        ]
        assert answers == [f"([0.0, 0.0, 0.0], ['parent', {number}])" for number in range(10)]
        names = {child.exec("hostname", check=True).stdout.strip() for child in children}
        assert names == {child.id for child in children}
    finally:
        for child in children:
            child.kill()


def test_a_branch_in_the_middle_of_a_computation(sandbox: Sandbox) -> None:
    sandbox.eval(
        """
import threading, time
count = 0
def work():
    global count
    while True:
        count += 1
        time.sleep(0.01)
threading.Thread(target=work, daemon=True).start()
"""
    )
    while int(sandbox.eval("count") or 0) < 5:
        time.sleep(0.1)
    branch = sandbox.branch()
    (twin,) = branch.fork(timeout=1800)
    for side in (sandbox, twin):
        before = int(side.eval("count") or 0)
        assert before >= 5
        while int(side.eval("count") or 0) <= before:
            time.sleep(0.1)
    sandbox.eval("state.append('later')")
    sandbox.rollback(branch)
    assert (sandbox.eval("state"), twin.eval("state")) == ("['parent']", "['parent']")
    (copy,) = twin.fork(timeout=1800)
    assert int(copy.eval("count") or 0) >= 5
    for one in (twin, copy):
        one.kill()


def test_commands_and_files(sandbox: Sandbox) -> None:
    heard: list[str] = []
    result = sandbox.commands.run("echo one; sleep 1; echo two; id -un >&2", on_stdout=heard.append)
    assert (heard, result.exit_code, bool(result.stderr)) == (["one\n", "two\n"], 0, True)
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=600)
    handle.send_stdin("typed")
    handle.close_stdin()
    assert handle.wait().stdout == "typed"
    endless = sandbox.commands.run("sleep 6000", background=True, timeout=0)
    assert sandbox.commands.kill(endless.pid)
    assert endless.ended().exit_code != 0
    large = os.urandom(5_000_000)
    sandbox.files.write("/srv/deep/large", large)
    assert sandbox.files.read("/srv/deep/large", "bytes") == large
    assert sandbox.files.rename("/srv/deep", "/srv/moved").type == forkd.FileType.DIR
    assert [entry.name for entry in sandbox.files.list("/srv/moved")] == ["large"]
    assert sandbox.files.make_dir("/srv/new") is True
    sandbox.files.remove("/srv/moved")
    assert not sandbox.files.exists("/srv/moved/large")


def test_code_shows_pictures(sandbox: Sandbox) -> None:
    execution = sandbox.run_code(
        "import matplotlib.pyplot as plot\nplot.plot([1, 3, 2])\nplot.show()\nprint('drawn')\nstate", timeout=600
    )
    assert execution.error is None
    assert (execution.text, execution.logs.stdout) == ("['parent']", ["drawn\n"])
    pictures = [result.png for result in execution.results if result.png]
    assert base64.b64decode(pictures[0]).startswith(b"\x89PNG")
    assert sandbox.run_code("[1, 2].map(x => x * 2)", "javascript").text is not None


def test_standing_still_and_going_on(sandbox: Sandbox) -> None:
    sandbox.eval("state.append('before')")
    sandbox.pause()
    with pytest.raises(forkd.ConflictError) as stopped:
        sandbox.exec("true")
    assert stopped.value.code == "wrong_state"
    assert sandbox.id in [info.id for info in Sandbox.list(state="paused")]
    again = Sandbox.connect(sandbox.id, timeout=3600)
    assert again.eval("state") == "['parent', 'before']"
    assert (again.get_info().expires_at_unix or 0) > time.time() + 3000
    assert again.stats().memory_private_bytes > 0
    assert again.controller.ping_sandbox(again.id)["pong"]


def test_ports(sandbox: Sandbox) -> None:
    sandbox.files.write("/srv/www/page", "from the guest")
    server = sandbox.commands.run("python3 -m http.server 8000 --directory /srv/www", background=True, timeout=0)
    while sandbox.fetch(8000, "/page").status_code == 502:
        time.sleep(0.5)
    assert sandbox.fetch(8000, "/page").text == "from the guest"
    assert sandbox.fetch(8000, "/none").status_code == 404
    server.kill()


def test_what_a_sandbox_may_reach_can_be_changed(sandbox: Sandbox) -> None:
    if sandbox.info.egress is None:
        pytest.skip("the daemon has no networks")
    sandbox.set_egress(Egress(mode="deny"))
    egress = sandbox.get_info().egress
    assert egress is not None
    assert egress.mode == "deny"


def test_a_snapshot_of_an_image_tells_how_far_it_is() -> None:
    told: list[models.Progress] = []
    made = Snapshot.create("sdk-made", IMAGE, warm_up="print('warming'); made = 7", wait=False, on_progress=told.append)
    try:
        assert made.info.status != "failed"
        assert [event.step for event in told if event.step]
        with Sandbox.create(made, timeout=1800) as child:
            assert child.eval("made") == "7"
    finally:
        made.delete(cascade=True)


async def test_asynchronously() -> None:
    async with await AsyncSandbox.create(SNAPSHOT, timeout=1800) as parent:
        await parent.eval("state.append('async')")
        children = await parent.fork(4, timeout=1800)
        answers = await asyncio.gather(*(child.eval(f"state + [{number}]") for number, child in enumerate(children)))
        assert answers == [f"['parent', 'async', {number}]" for number in range(4)]
        results = await asyncio.gather(*(child.commands.run("echo $((6 * 7))") for child in children))
        assert [result.stdout for result in results] == ["42\n"] * 4
        await asyncio.gather(*(child.kill() for child in children))
    await parent.controller.aclose()
