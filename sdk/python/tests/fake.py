"""A daemon that answers as it is told to, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Optional, Union

ID = "i0123456789abcdefghi"

SANDBOX = {
    "id": ID,
    "snapshot_tag": "base",
    "state": "running",
    "created_at_unix": 1,
    "vcpus": 1,
    "memory_mib": 64,
    "disk_mib": 16,
    "branches": [],
    "metadata": {"a": "1", "b": "2"},
}
CREATED = {"sandboxes": [SANDBOX], "timing": {"restored_us": 1, "ready_us": 2}}
SNAPSHOT = {
    "tag": "base",
    "status": "ready",
    "created_at_unix": 1,
    "children": [],
    "vcpus": 1,
    "memory_mib": 64,
    "disk_mib": 16,
    "size": {"memory_bytes": 0, "disk_bytes": 0},
    "loaded": True,
}


@dataclasses.dataclass
class Asked:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclasses.dataclass
class Answer:
    status: int = 200
    body: Union[bytes, list[bytes]] = b""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    # The connection ends without an answer, or in the middle of one.
    cut: bool = False


def answer(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(value).encode(), headers)


def lines(*values: Any) -> Answer:
    return Answer(200, [json.dumps(value).encode() + b"\n" for value in values], {"x-request-id": "r2"})


def refused(status: int, code: str, hint: Optional[str] = None, hint_code: Optional[str] = None) -> Answer:
    body = {"error": f"it is {code}", "code": code, "hint": hint, "hint_code": hint_code}
    return answer({name: value for name, value in body.items() if value is not None}, status, **{"x-request-id": "r1"})


class Fake:
    """Requests get the answers in turn, and the last one again and again."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Union[Answer, Callable[[Asked], Answer]]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def reply(self) -> None:
                asked = Asked(f"{self.command} {self.path}", {k.lower(): v for k, v in self.headers.items()}, self.read())
                fake.asked.append(asked)
                given = fake.answers.pop(0) if len(fake.answers) > 1 else fake.answers[0]
                given = given(asked) if callable(given) else given
                if given.cut and not given.body:
                    self.close_connection = True
                    return
                self.send_response(given.status)
                for name, value in given.headers.items():
                    self.send_header(name, value)
                if isinstance(given.body, bytes):
                    self.send_header("content-length", str(len(given.body) + (9 if given.cut else 0)))
                    self.end_headers()
                    self.wfile.write(given.body)
                else:
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    for piece in given.body:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                if given.cut:
                    self.close_connection = True

            def read(self) -> bytes:
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                body = b""
                while True:
                    size = int(self.rfile.readline(), 16)
                    piece = self.rfile.read(size)
                    self.rfile.readline()
                    if size == 0:
                        return body
                    body += piece

            do_GET = do_POST = do_PUT = do_DELETE = reply

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def says(self, *answers: Union[Answer, Callable[[Asked], Answer]]) -> None:
        self.answers = list(answers)


@contextlib.contextmanager
def running() -> Iterator[Fake]:
    fake = Fake()
    thread = threading.Thread(target=lambda: fake.server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.server.shutdown()
        fake.server.server_close()
