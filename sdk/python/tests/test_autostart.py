"""A daemon of one's own: which helper is started, what it may say, and how long it is held. The helper is a script."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

import pytest

import fake
from forkd import AsyncController, ConnectionFailedError, Controller, InvalidArgumentError, ProtocolError, Sandbox, _autostart

# Says what it is told to, and notes when its stdin ends.
SCRIPT = """#!/bin/sh
echo "start $$ $*" >>"{notes}"
{before}
cat >/dev/null
echo "end $$" >>"{notes}"
"""


class Script:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "forkd"
        self.file = directory / "notes"

    def write(self, before: str) -> None:
        # A shell may still be reading the one before.
        made = self.path.with_suffix(".new")
        made.write_text(SCRIPT.format(notes=self.file, before=before))
        made.chmod(0o755)
        made.rename(self.path)

    def says(self, **line: Any) -> None:
        self.write(f"echo '{json.dumps(line)}'")

    @property
    def notes(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def pid(self) -> int:
        return int(self.notes[-1].split()[1])


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends, "not in time"
        time.sleep(0.01)


def ask(address: Optional[str] = None, **options: Any) -> None:
    """One request of a client that is gone then."""
    with Controller(address, retries=0, **options) as controller:
        controller.health()


@pytest.fixture
def script(daemon: fake.Fake, clean: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    daemon.answers = [fake.answer({"ok": True})]
    made = Script(tmp_path)
    made.says(url=daemon.address, token="own", private=True)
    clean.setenv("FORKD_BIN", str(made.path))
    clean.setenv("FORKD_HOME", str(tmp_path))
    return made


def test_the_first_request_starts_it_and_the_end_of_the_client_ends_it(script: Script, daemon: fake.Fake) -> None:
    with Controller(autostart=True) as controller:
        assert script.notes == []
        controller.health()
        controller.health()
        assert len(script.notes) == 1
        assert script.notes[0].endswith(" hold")
        assert controller.base_url == daemon.address
        assert {asked.headers["authorization"] for asked in daemon.asked} == {"Bearer own"}
    until(lambda: len(script.notes) == 2)
    assert script.notes[1].startswith("end")
    # The next request makes new connections.
    controller.health()
    assert len(script.notes) == 3
    controller.close()


def test_it_is_started_only_if_it_is_asked_for_and_no_daemon_is_named(
    script: Script, daemon: fake.Fake, clean: pytest.MonkeyPatch
) -> None:
    for value in [None, "", "0", "no"]:
        if value is not None:
            clean.setenv("FORKD_AUTOSTART", value)
        with Controller() as controller:
            assert controller.base_url.startswith("unix:")
    clean.setenv("FORKD_AUTOSTART", "1")
    ask(daemon.address)
    Controller(autostart=False).close()
    clean.setenv("FORKD_URL", daemon.address)
    ask(autostart=True)
    assert script.notes == []
    clean.setenv("FORKD_AUTOSTART", "perhaps")
    ask()
    clean.delenv("FORKD_URL")
    with pytest.raises(InvalidArgumentError, match="FORKD_AUTOSTART"):
        Controller()


async def test_the_asynchronous_client_does_the_same(script: Script) -> None:
    script.write(f"sleep 0.3; echo '{json.dumps({'url': os.environ['FORKD_HOME'], 'private': True})}'")
    async with AsyncController(autostart=True) as controller:
        asked = asyncio.ensure_future(controller.health())
        ticks = 0
        while not asked.done():
            await asyncio.sleep(0.01)
            ticks += 1
        # Nobody else was held up.
        assert ticks > 10
        with pytest.raises(InvalidArgumentError, match="not a valid address"):
            asked.result()


def test_a_daemon_that_was_there_is_not_held(script: Script, daemon: fake.Fake, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("FORKD_TOKEN", "usual")
    script.says(url=daemon.address, private=False)
    with Controller(autostart=True) as controller:
        controller.health()
        until(lambda: len(script.notes) == 2)
        controller.health()
        assert len(script.notes) == 2
        assert {asked.headers["authorization"] for asked in daemon.asked} == {"Bearer usual"}


def test_a_helper_that_is_gone_is_started_again(script: Script) -> None:
    with Controller(autostart=True) as controller:
        controller.health()
        os.kill(script.pid(), signal.SIGKILL)
        until(lambda: controller._helper is not None and controller._helper.found is None)
        controller.health()
        assert len(script.notes) == 2


def test_what_it_says_instead(script: Script, clean: pytest.MonkeyPatch) -> None:
    script.says(error="there is no KVM", hint="get one")
    with pytest.raises(ConnectionFailedError, match="there is no KVM") as refused:
        ask(autostart=True)
    assert refused.value.hint == "get one"
    for before, error, said in [
        ("exit 7", ConnectionFailedError, "status 7"),
        ("echo nothing; exit 0", ProtocolError, "no|not"),
        ("echo []", ProtocolError, "JSON"),
        ("echo '{}'", ProtocolError, "url"),
        ("head -c 100000 /dev/zero", ProtocolError, "too long"),
    ]:
        script.write(before)
        with pytest.raises(error, match=said):
            ask(autostart=True)
    clean.setattr(_autostart, "START", 0.2)
    script.write("")
    with pytest.raises(ConnectionFailedError, match="within"):
        ask(autostart=True)


def test_without_the_program_it_says_so(script: Script, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("FORKD_BIN", "/no/such/program")
    with pytest.raises(ConnectionFailedError, match="/no/such/program, which is no program"):
        ask(autostart=True)
    clean.delenv("FORKD_BIN")
    clean.setenv("PATH", "/no/such/directory")
    with pytest.raises(ConnectionFailedError, match="no program forkd on PATH") as refused:
        ask(autostart=True)
    assert "FORKD_BIN" in str(refused.value.hint)


def test_sandboxes_share_one_helper_until_the_process_ends(script: Script, daemon: fake.Fake) -> None:
    code = """
from forkd import Controller, Sandbox
first, second = Sandbox.create("base"), Sandbox.create("base")
Controller.shared().close()
first.get_info()
Controller.shared().close()
"""
    daemon.answers = [fake.answer(fake.CREATED, 201), fake.answer(fake.CREATED, 201), fake.answer(fake.SANDBOX)]
    subprocess.run([sys.executable, "-W", "error", "-c", code], env={**os.environ, "FORKD_AUTOSTART": "1"}, check=True)
    until(lambda: len(script.notes) == 2)
    assert [note.split()[0] for note in script.notes] == ["start", "end"]


def test_a_killed_client_lets_go_also_when_it_has_forked(script: Script) -> None:
    code = """
import os, time
from forkd import Controller
controller = Controller(autostart=True)
controller.health()
if os.fork() == 0:
    assert controller._helper.found is None
    time.sleep(2)
    os._exit(0)
print("ready", flush=True)
time.sleep(60)
"""
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    begun = time.monotonic()
    client.kill()
    until(lambda: len(script.notes) == 2)
    assert time.monotonic() - begun < 1.5, "its child held it, too"
    client.wait()
    client.stdout.close()


def test_the_variable_is_enough(script: Script, daemon: fake.Fake, clean: pytest.MonkeyPatch) -> None:
    clean.setenv("FORKD_AUTOSTART", "1")
    daemon.answers = [fake.answer(fake.CREATED, 201)]
    Sandbox.create("base")
    assert len(script.notes) == 1
    Controller.shared().close()
    assert len(script.notes) == 1
    _autostart.shared().end()
    until(lambda: len(script.notes) == 2)
