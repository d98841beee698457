"""Forks of an interpreter with pandas and matplotlib: a table and a picture of each. Prints one JSON line."""

import base64
import json
import time

from forkd import Sandbox

SNAPSHOT = "code-interpreter"
PATIENCE = 600
ANALYSE = """
frame = pandas.DataFrame({'month': range(1, 13), 'sales': [n * n for n in range(12)]})
frame['sales'].sum()
"""
PLOT = "frame.plot(x='month', y='sales'); pyplot.show()"


def until_ready() -> float:
    """Seconds from the request for a fork until it has analysed a table."""
    begun = time.monotonic()
    with Sandbox.create(SNAPSHOT, timeout=PATIENCE) as sandbox:
        assert sandbox.run_code(ANALYSE, timeout=PATIENCE).text == "506"
        return time.monotonic() - begun


fork_ms = [round(until_ready() * 1000) for _ in range(3)]

with Sandbox.create(SNAPSHOT, timeout=PATIENCE) as one, Sandbox.create(SNAPSHOT, timeout=PATIENCE) as other:
    one.run_code(ANALYSE, timeout=PATIENCE)
    plotted = one.run_code(PLOT, timeout=PATIENCE)
    assert plotted.error is None, plotted.error
    (picture,) = [result.png for result in plotted.results if result.png]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    error = other.run_code("frame", timeout=PATIENCE).error
    assert error is not None and error.name == "NameError", error
    # Commands belong to E2B's user, who may use sudo.
    assert one.exec("id -un; sudo id -un", timeout=PATIENCE, check=True).stdout.split() == ["user", "root"]

print(json.dumps({"recipe": SNAPSHOT, "fork_ms": fork_ms, "picture_bytes": len(picture)}))
