"""A request and what its answer means, for both clients."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Sequence
from typing import Any, Callable, Generic, Optional, TypeVar, Union
from urllib.parse import quote, urlencode

from ._model import Model
from .errors import InvalidArgumentError, ProtocolError

T = TypeVar("T")
M = TypeVar("M", bound=Model)
Values = dict[str, Union[str, int, bool, Sequence[str], None]]

JSON = "application/json"
LINES = "application/x-ndjson"
BYTES = "application/octet-stream"
TAR = "application/x-tar"


@dataclasses.dataclass(frozen=True)
class Call(Generic[T]):
    """A request. `read` makes the answer's body into what the caller gets."""

    method: str
    path: str
    read: Callable[[bytes], T]
    accept: str = JSON
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: Optional[bytes] = None
    # Seconds until the answer begins, and between its pieces. Without it, what the client has.
    timeout: Optional[float] = None
    # Whether it comes to the same if it is sent twice.
    repeatable: bool = False

    def within(self, timeout: float) -> Call[T]:
        """The same with a time limit of its own."""
        return dataclasses.replace(self, timeout=timeout)

    def streamed(self) -> Call[T]:
        """The same with an answer in lines, which are there from the first."""
        return dataclasses.replace(self, accept=LINES)


def get(path: str, read: Callable[[bytes], T], /, **values: Union[str, int, bool, Sequence[str], None]) -> Call[T]:
    """Looks something up."""
    return Call("GET", path + query(values), read, repeatable=True)


def put(path: str, read: Callable[[bytes], T], body: Model) -> Call[T]:
    """Sets something to what it is to be."""
    return Call("PUT", path, read, headers={"content-type": JSON}, body=_json(body), repeatable=True)


def delete(path: str, read: Callable[[bytes], T], /, **values: Union[str, int, bool, Sequence[str], None]) -> Call[T]:
    """Removes something."""
    return Call("DELETE", path + query(values), read, repeatable=True)


def post(path: str, read: Callable[[bytes], T], body: Optional[Model] = None, *, repeatable: bool = False) -> Call[T]:
    """Does something."""
    headers = {} if body is None else {"content-type": JSON}
    return Call("POST", path, read, headers=headers, body=_json(body), repeatable=repeatable)


def make(path: str, read: Callable[[bytes], T], body: Model) -> Call[T]:
    """Makes something, once, however often it is sent: the daemon knows it by its key."""
    call = post(path, read, body, repeatable=True)
    return dataclasses.replace(call, headers={**call.headers, "idempotency-key": str(uuid.uuid4())})


def part(text: str) -> str:
    """A part of a path, whatever it is."""
    # Dots alone would be taken for a way through the path, even when escaped.
    if text in ("", ".", ".."):
        raise InvalidArgumentError(f"invalid name: {text!r}")
    return quote(text, safe="")


def query(values: Values) -> str:
    """What comes behind the question mark, with the mark."""
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    text = urlencode({name: value for name, value in given.items() if value is not None}, doseq=True, quote_via=quote)
    return f"?{text}" if text else ""


def model(kind: type[M]) -> Callable[[bytes], M]:
    """Reads a model."""
    return lambda body: kind.from_json(parsed(body))


def many(kind: type[M]) -> Callable[[bytes], list[M]]:
    """Reads a list of models."""

    def read(body: bytes) -> list[M]:
        values = parsed(body)
        if not isinstance(values, list):
            raise ProtocolError(f"expected a list of {kind.__name__} in the daemon's answer")
        return [kind.from_json(value) for value in values]

    return read


def optional(kind: type[M]) -> Callable[[bytes], Optional[M]]:
    """Reads a model, if there is one: what was removed a moment ago is answered without a body."""
    return lambda body: kind.from_json(parsed(body)) if body else None


def nothing(body: bytes) -> None:
    """There is nothing to read."""


def parsed(body: bytes) -> Any:
    """The JSON that an answer, or a line of it, is."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("what answers is not forkd's daemon: no JSON", hint="FORKD_ADDRESS names another") from error


def _json(body: Optional[Model]) -> Optional[bytes]:
    return None if body is None else json.dumps(body.to_json()).encode()
