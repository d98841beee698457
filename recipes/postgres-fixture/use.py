"""A database for each test: every test gets a fork of a PostgreSQL server that runs and has rows. Prints one JSON line."""

import json
import time
from collections.abc import Callable

from forkd import Sandbox, Snapshot

SNAPSHOT = "postgres-fixture"
PATIENCE = 300


def query(sandbox: Sandbox, sql: str) -> str:
    """Rows of a query, over TCP with the password of ~/.pgpass."""
    command = ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "app", "-c", sql, "shop"]
    return sandbox.exec(command, timeout=PATIENCE, check=True).stdout.strip()


def by_socket(sandbox: Sandbox, sql: str) -> str:
    """The same over the Unix socket, as the database's own administrator."""
    command = ["psql", "-XAtq", "-h", "/var/run/postgresql", "-c", sql, "shop"]
    return sandbox.exec(command, user="postgres", timeout=PATIENCE, check=True).stdout.strip()


def until_ready() -> float:
    """Seconds from the request for a fork until its server has answered a query."""
    begun = time.monotonic()
    with Sandbox.create(SNAPSHOT) as sandbox:
        assert query(sandbox, "SELECT count(*) FROM orders") == "1000"
        return time.monotonic() - begun


def drops_everything(sandbox: Sandbox) -> None:
    query(sandbox, "DROP TABLE orders; DROP TABLE customers")
    assert by_socket(sandbox, "SELECT count(*) FROM pg_tables WHERE tablename IN ('orders', 'customers')") == "0"


def sees_all_rows(sandbox: Sandbox) -> None:
    assert query(sandbox, "SELECT count(*), sum(cents) FROM orders") == "1000|600500"


def adds_an_order(sandbox: Sandbox) -> None:
    query(sandbox, "INSERT INTO orders VALUES (1001, 1, 1)")
    assert query(sandbox, "SELECT count(*) FROM orders") == "1001"
    # It is as durable as on a machine of its own.
    assert by_socket(sandbox, "SHOW fsync") == "on"
    sandbox.exec(["pg_ctlcluster", "15", "main", "stop", "-m", "immediate"], timeout=PATIENCE, check=True)
    sandbox.exec(["pg_ctlcluster", "15", "main", "start"], timeout=PATIENCE, check=True)
    assert query(sandbox, "SELECT count(*) FROM orders") == "1001"


def refuses_strangers(sandbox: Sandbox) -> None:
    stranger = ["psql", "-Xw", "-h", "127.0.0.1", "-U", "app", "-c", "SELECT 1", "shop"]
    refused = sandbox.exec(stranger, envs={"PGPASSFILE": "/dev/null"}, timeout=PATIENCE)
    assert refused.exit_code == 2 and "no password supplied" in refused.stderr, refused


fork_ms = [round(until_ready() * 1000) for _ in range(3)]

tests: list[Callable[[Sandbox], None]] = [drops_everything, sees_all_rows, adds_an_order, refuses_strangers]
# All at once, and none of them sees what another has done.
children = Snapshot.get(SNAPSHOT).fork(len(tests))
try:
    for test, child in zip(tests, children):
        test(child)
    sees_all_rows(children[1])
finally:
    for child in children:
        child.kill()

print(json.dumps({"recipe": SNAPSHOT, "fork_ms": fork_ms, "tests": len(tests)}))
