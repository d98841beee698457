"""The scenarios that all clients carry out: sdk/scenarios, described in docs/clients.md.

The daemon is the one that FORKD_URL names, as it is for users; FORKD_TEST_SNAPSHOT is the snapshot that sandboxes are forked
from. With FORKD_TEST_GUEST=none it has no agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import forkd
from forkd import Sandbox, Snapshot

SNAPSHOT = os.environ.get("FORKD_TEST_SNAPSHOT", "")
HAS_GUEST = os.environ.get("FORKD_TEST_GUEST") != "none"
SCENARIOS = sorted((Path(__file__).parent.parent.parent / "scenarios").glob("*.json"))

pytestmark = pytest.mark.skipif(not SNAPSHOT, reason="FORKD_TEST_SNAPSHOT names no snapshot")

# Steps that are done on no object.
FREE: dict[str, Callable[..., Any]] = {
    "create": Sandbox.create,
    "connect": Sandbox.connect,
    "list": lambda **given: list(Sandbox.list(**given)),
    "get_snapshot": Snapshot.get,
    "value": lambda of: of,
}


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What steps have kept; what they have made is removed at the end."""
    known: dict[str, Any] = {"SNAPSHOT": SNAPSHOT}
    yield known
    kept = [one for value in known.values() for one in (value if isinstance(value, list) else [value])]
    for one in kept:
        if isinstance(one, Sandbox):
            with contextlib.suppress(forkd.ForkdError):
                one.kill()
    for one in kept:
        if isinstance(one, Snapshot) and one.info.branched_from:
            with contextlib.suppress(forkd.ForkdError):
                one.delete(cascade=True)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, names: dict[str, Any]) -> None:
    scenario = json.loads(path.read_text())
    if "guest" in scenario.get("needs", []) and not HAS_GUEST:
        pytest.skip("the snapshot has no agent")
    for number, step in enumerate(scenario["steps"], 1):
        print(f"{path.name}: step {number}: {json.dumps(step)}")
        carry_out(step, names)


def carry_out(step: dict[str, Any], names: dict[str, Any]) -> None:
    expect = filled(step.get("expect", {}), names)
    deadline = time.monotonic() + expect.pop("until", 0)
    while True:
        try:
            attempt(step, expect, names)
            return
        except (AssertionError, forkd.ForkdError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


def attempt(step: dict[str, Any], expect: dict[str, Any], names: dict[str, Any]) -> None:
    if "error" not in expect:
        result = done(step, names)
        if "as" in step:
            names[step["as"]] = result
        compare(found(result, expect["get"].split(".")) if "get" in expect else result, expect)
        return
    with pytest.raises(getattr(forkd, expect["error"])) as failed:
        done(step, names)
    assert expect.get("code") in (None, failed.value.code)


def done(step: dict[str, Any], names: dict[str, Any]) -> Any:
    given = filled(step.get("with", {}), names)
    if "on" not in step:
        return FREE[step["do"]](**given)
    if step["do"] in ("run", "start"):
        given["cmd"] = given.pop("command")
    first, *rest = step["on"].split(".")
    return getattr(found(names[first], rest), step["do"])(**given)


def compare(result: Any, expect: dict[str, Any]) -> None:
    if "equals" in expect:
        assert result == expect["equals"]
    if "length" in expect:
        assert len(result) == expect["length"]
    if "matches" in expect:
        assert re.search(expect["matches"], result)
    if "contains" in expect:
        wanted = expect["contains"]
        if isinstance(result, str):
            assert wanted in result
        else:
            assert any(all(found(one, [name]) == value for name, value in wanted.items()) for one in result), result


def filled(value: Any, names: dict[str, Any]) -> Any:
    """A value with names replaced by what they stand for."""
    if isinstance(value, dict):
        return {name: filled(one, names) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if isinstance(value, str) and value.startswith("$"):
        first, *rest = value[1:].split(".")
        return found(names[first], rest)
    return value


def found(value: Any, path: list[str]) -> Any:
    for name in path:
        if isinstance(value, list):
            value = value[int(name)]
        else:
            value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value
