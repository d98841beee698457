"""Eight children of one branch try different fixes of a bug. The first that passes the tests is kept. Prints one JSON line."""

import json
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from forkd import CommandResult, Sandbox

SNAPSHOT = "coding-agent"
PROJECT = "/srv/daycount"
SOURCE = f"{PROJECT}/daycount/days.c"
BUG = "return year % 4 == 0;"
TEST = "make --silent && python3 -m pytest -q"
PATIENCE = 900

# What a model would propose, asked eight times. Two of them are right, one does not compile.
FIXES = [
    "return year % 4 == 0 && year % 100 != 0;",
    "return year % 100 != 0 || year % 400 == 0;",
    "return year % 4 == 0 && year % 400 != 0;",
    "return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);",
    "return (year % 4 == 0) + (year % 100 == 0);",
    "return year % 400 == 0;",
    "return leap(year);",
    "return year % 16 == 0 || (year % 4 == 0 && year % 25 != 0);",
]


def run(sandbox: Sandbox, command: str) -> CommandResult:
    return sandbox.exec(command, cwd=PROJECT, timeout=PATIENCE)


def until_ready() -> float:
    """Seconds from the request for a fork until its compiler and its tests have run, which shows the bug."""
    begun = time.monotonic()
    with Sandbox.create(SNAPSHOT, timeout=PATIENCE) as sandbox:
        tested = run(sandbox, TEST)
        assert tested.exit_code == 1 and "test_centuries" in tested.stdout and "3 passed" in tested.stdout, tested
        return time.monotonic() - begun


def attempt(sandbox: Sandbox, fix: str) -> bool:
    """Whether all tests pass with a fix."""
    sandbox.files.write(SOURCE, sandbox.files.read(SOURCE).replace(BUG, fix))
    return run(sandbox, TEST).exit_code == 0


fork_ms = [round(until_ready() * 1000)]

with Sandbox.create(SNAPSHOT, timeout=3600) as agent:
    # The agent has worked for a while. All of this is in each of its children.
    agent.exec("git switch --quiet --create leap-years", cwd=PROJECT, timeout=PATIENCE, check=True)
    children = agent.fork(len(FIXES), timeout=3600)
    try:
        with ThreadPoolExecutor(len(FIXES)) as pool:
            attempts = {pool.submit(attempt, child, fix): (child, fix) for child, fix in zip(children, FIXES)}
            verdicts, winner = {}, None
            for done in as_completed(attempts):
                child, fix = attempts[done]
                verdicts[fix] = done.result()
                if winner is None and verdicts[fix]:
                    winner = child, fix
                elif not verdicts[fix]:
                    child.kill()
        # The judge keeps the first that passes, and nothing of the others.
        assert winner is not None, verdicts
        assert [fix for fix in FIXES if verdicts[fix]] == [FIXES[3], FIXES[7]], verdicts
        child, fix = winner
        committed = run(
            child, "git commit --quiet --all --message 'Centuries are no leap years' && git show --stat --format=%s"
        )
        assert committed.exit_code == 0 and "daycount/days.c | 2 +-" in committed.stdout, committed
        patch = run(child, "git format-patch --stdout main").stdout
    finally:
        for child in children:
            child.kill()

    # The patch goes back to the agent, which was never touched.
    assert run(agent, "git diff --quiet main").exit_code == 0
    agent.files.write("/tmp/fix.patch", patch)
    applied = run(agent, f"git am --quiet /tmp/fix.patch && {TEST}")
    assert applied.exit_code == 0 and "4 passed" in applied.stdout, applied

print(json.dumps({"recipe": SNAPSHOT, "fork_ms": fork_ms, "tried": len(FIXES), "kept": fix}))
