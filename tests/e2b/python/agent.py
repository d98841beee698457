"""A program as agents are written on the official SDK: it creates a sandbox, installs a package, plots, forks the sandbox three
ways, picks the best, pauses it overnight, and goes on the next day. Nothing in it knows of forkd.
"""

import base64
import os

from e2b_code_interpreter import Sandbox

PACKAGE = """
mkdir -p /tmp/greeting/greeting && cd /tmp/greeting
echo 'def hello(name): return f"Hello, {name}!"' > greeting/__init__.py
cat > pyproject.toml <<'END'
[project]
name = "greeting"
version = "1.0"
END
mkdir -p /tmp/site && cp -r greeting /tmp/site/
"""


def main():
    sandbox = Sandbox.create(timeout=1800, metadata={"agent": "example"})
    # A package of our own, so that no index is needed.
    sandbox.commands.run(PACKAGE)
    sandbox.run_code("import sys; sys.path.insert(0, '/tmp/site')")
    assert sandbox.run_code("from greeting import hello; hello('agent')").text == "Hello, agent!"

    plot = sandbox.run_code("import matplotlib.pyplot as plt; plt.bar(['a', 'b'], [1, 2]); plt.show()", timeout=600)
    picture = base64.b64decode(plot.results[0].png)
    assert picture.startswith(b"\x89PNG"), plot

    sandbox.run_code("score, steps = 0, []")
    forks = sandbox.fork(count=3, timeout=1800)
    ways = [getattr(fork, "sandbox", fork) for fork in forks]
    scores = []
    for number, way in enumerate(ways):
        way.run_code(f"steps.append('way {number}'); score = ({number} * 7) % 5")
        scores.append(int(way.run_code("score").text))
    best = max(range(3), key=lambda number: scores[number])
    for number, way in enumerate(ways):
        if number != best:
            way.kill()
    assert sandbox.run_code("steps").text == "[]", "the first knows nothing of it"

    chosen = ways[best]
    chosen.pause()
    # The night.
    next_day = Sandbox.connect(chosen.sandbox_id, timeout=600)
    assert next_day.run_code("steps").text == f"['way {best}']"
    assert next_day.run_code("hello('again')").text == "Hello, again!"
    next_day.kill()
    sandbox.kill()
    print("the agent has done its work")


if __name__ == "__main__":
    os.environ.setdefault("E2B_API_KEY", "e2b_0000000000000000000000000000000000000000")
    main()
