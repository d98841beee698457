"""Requests are those of docs/openapi.json; retries and time limits those of sdk/policy.json, as the TypeScript client's are."""

from __future__ import annotations

import inspect
import json
import math
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forkd import _api, _policy, _wire, models
from forkd._call import Call

HERE = Path(__file__).parent.parent
OPENAPI = json.loads((HERE.parent.parent / "docs" / "openapi.json").read_text())
POLICY = json.loads((HERE.parent / "policy.json").read_text())
TEXT = (HERE.parent.parent / "docs" / "clients.md").read_text()

# The document itself is for generators of clients; a port's connection is for the command line, as `fetch` cannot hold one.
LEFT_OUT = {"GET /openapi.json", "GET /v1/sandboxes/{id}/ports/{port}"}


def operations() -> dict[str, Any]:
    """All that the daemon can be asked."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in OPENAPI["paths"].items()
        for method, operation in methods.items()
        if f"{method.upper()} {path}" not in LEFT_OUT
    }


def argument(annotation: str) -> Any:
    """Anything that fits: a body is only ever written as JSON."""
    if isinstance(getattr(models, annotation.partition(".")[2] or "None", None), type):
        return types.SimpleNamespace(to_json=dict, timeout_secs=1)
    known: dict[str, Any] = {
        "str": "ARG",
        "models.Signal": "SIGTERM",
        "int": 1,
        "bool": False,
        "Sequence[str]": [],
        "Values": {},
    }
    return known.get(annotation)


def calls() -> Iterator[tuple[str, Any]]:
    """What each function asks for."""
    for name, function in inspect.getmembers(_api, inspect.isfunction):
        if function.__module__ == _api.__name__ and not name.startswith("_"):
            made = function(*(argument(str(one.annotation)) for one in inspect.signature(function).parameters.values()))
            asked = made if isinstance(made, Call) else Call("GET", made, bytes)
            yield operation_of(asked), made


def operation_of(call: Call[Any]) -> str:
    path = call.path.partition("?")[0]
    found = [
        name for name in operations() if re.fullmatch(re.sub(r"\{\w+\}", "(ARG|1)", name), f"{call.method} {path}") is not None
    ]
    assert len(found) == 1, f"{call.method} {path} is {found} in docs/openapi.json"
    return found[0]


def as_policy(call: Any) -> dict[str, Any]:
    # A WebSocket's, or what the caller asks for itself.
    if not isinstance(call, Call):
        return {"path_only": True}
    limit = {} if call.timeout is None else {"limit": "unlimited" if math.isinf(call.timeout) else call.timeout}
    return {"repeated": call.repeatable, **limit}


def test_each_of_the_daemons_requests_has_one_function() -> None:
    assert sorted(name for name, _ in calls()) == sorted(operations())


def test_a_body_has_a_type_that_the_daemon_takes() -> None:
    for name, call in calls():
        if isinstance(call, Call) and "content-type" in call.headers:
            assert call.headers["content-type"] in operations()[name]["requestBody"]["content"], name


def test_retries_and_limits_of_requests_are_those_of_the_typescript_client() -> None:
    assert {name: as_policy(call) for name, call in calls()} == POLICY["requests"]


def test_numbers_are_those_of_the_typescript_client() -> None:
    for name, number in POLICY["numbers"].items():
        ours = getattr(_policy, name, None) or getattr(_wire, name)
        assert (list(ours) if isinstance(ours, tuple) else ours) == number, name


def test_numbers_are_those_of_the_document() -> None:
    numbers = POLICY["numbers"]
    for line in [
        f"| a connection | {numbers['CONNECT']} s;",
        f"| requests in general | {numbers['USUAL']} s:",
        f"| make sandboxes, branch, roll back, interrupt code | {numbers['LONG']} s |",
        f"| stdin of a process | {numbers['USUAL'] + numbers['GRACE']} s:",
        f"| commands and code | their own limit + {numbers['GRACE']} s,",
        f"is {numbers['PAUSES'][0]} s, before all others {numbers['PAUSES'][1]} s",
    ]:
        assert line in TEXT, line
    assert (numbers["RETRIES"], numbers["JITTER"]) == (2, 0.5)
    assert "Two retries by default" in TEXT
    assert "a random part of up to half of it" in TEXT
