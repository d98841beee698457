"""Forks of a Jupyter kernel that has numpy imported, asked in its own protocol. Prints one JSON line."""

import json
import time
from typing import Optional

from forkd import EvaluationError, Sandbox

SNAPSHOT = "jupyter-kernel"
PATIENCE = 600


def ask(sandbox: Sandbox, code: str, client: str = "kernel") -> tuple[str, Optional[str]]:
    """What code comes to in the kernel of a sandbox: its output and its value."""
    answer = sandbox.run_code(f"import json; print(json.dumps(execute({client}, {code!r})))", timeout=PATIENCE)
    if answer.error:
        raise EvaluationError(name=answer.error.name, value=answer.error.value, traceback=answer.error.traceback)
    output, value = json.loads("".join(answer.logs.stdout))
    return output, value


def until_ready() -> float:
    """Seconds from the request for a fork until its kernel has answered a new client."""
    begun = time.monotonic()
    with Sandbox.create(SNAPSHOT) as sandbox:
        sandbox.eval("mine = connect()", timeout=PATIENCE)
        assert ask(sandbox, "int(numpy.arange(10).sum())", "mine") == ("", "45")
        return time.monotonic() - begun


fork_ms = [round(until_ready() * 1000) for _ in range(3)]

with Sandbox.create(SNAPSHOT) as one, Sandbox.create(SNAPSHOT) as other:
    # The connection of the snapshot's own client is still there in both.
    assert ask(one, "x = 1; print('in one')") == ("in one\n", None)
    assert ask(one, "x + 1") == ("", "2")
    try:
        ask(other, "x")
        raise AssertionError("a fork sees the names of another")
    except EvaluationError as error:
        assert "NameError" in error.value, error
    assert ask(one, "random.random()") != ask(other, "random.random()")
    # A branch has the state of the kernel, and keeps its own.
    (child,) = one.fork()
    with child:
        assert ask(child, "x = x + 40; x + 1") == ("", "42")
        assert ask(one, "x") == ("", "1")

print(json.dumps({"recipe": SNAPSHOT, "fork_ms": fork_ms}))
