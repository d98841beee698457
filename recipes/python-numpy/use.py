"""Ten forks work on ten parts of one problem, each with numpy already imported. Prints one JSON line."""

import json
import time

from forkd import Sandbox, Snapshot

SNAPSHOT = "python-numpy"


def until_ready() -> float:
    """Seconds from the request for a fork until it has used numpy."""
    begun = time.monotonic()
    with Sandbox.create(SNAPSHOT) as sandbox:
        # Without an import: the interpreter of the snapshot has it.
        assert sandbox.eval("numpy.zeros(5).tolist()") == "[0.0, 0.0, 0.0, 0.0, 0.0]"
        return time.monotonic() - begun


fork_ms = [round(until_ready() * 1000) for _ in range(3)]

children = Snapshot.get(SNAPSHOT).fork(10)
try:
    sums = [child.eval(f"int(numpy.arange({n * 100}, {n * 100 + 100}).sum())", timeout=300) for n, child in enumerate(children)]
finally:
    for child in children:
        child.kill()
assert [int(part or 0) for part in sums] == [sum(range(n * 100, n * 100 + 100)) for n in range(10)], sums

print(json.dumps({"recipe": SNAPSHOT, "fork_ms": fork_ms, "children": len(children)}))
