"""Forks compile and run TypeScript with a compiler that is already loaded. Prints one JSON line."""

import json
import time

from forkd import EvaluationError, Sandbox

SNAPSHOT = "nodejs"


def until_ready() -> float:
    """Seconds from the request for a fork until it has compiled and run TypeScript."""
    begun = time.monotonic()
    with Sandbox.create(SNAPSHOT) as sandbox:
        answer = sandbox.eval("run('const twice = (n: number): number => 2 * n; twice(21)')", language="javascript")
        assert answer == "42", answer
        return time.monotonic() - begun


fork_ms = [round(until_ready() * 1000) for _ in range(3)]

with Sandbox.create(SNAPSHOT) as one, Sandbox.create(SNAPSHOT) as other:
    one.eval("run('var secret: string = \"of one\"')", language="javascript")
    lengths = [sandbox.eval("globalThis.secret?.length", language="javascript") for sandbox in (one, other)]
    assert lengths == ["6", None], lengths
    try:
        one.eval("run('let = ;')", language="javascript")
        raise AssertionError("what is not TypeScript was run")
    except EvaluationError as error:
        assert error.name == "SyntaxError", error

    # Node.js itself is a program of the guest, too.
    version = one.exec(["node", "--version"], timeout=300, check=True).stdout.strip()

print(json.dumps({"recipe": SNAPSHOT, "fork_ms": fork_ms, "node": version}))
