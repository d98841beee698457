"""Writes the synchronous client: the asynchronous one, word for word, without its waiting."""

from __future__ import annotations

import re

# What the two do differently.
BY_HAND = {"__init__.py", "io.py"}

WORDS = {
    "AsyncClient": "Client",
    "AsyncController": "Controller",
    "AsyncSandbox": "Sandbox",
    "AsyncSandboxPaginator": "SandboxPaginator",
    "AsyncSnapshot": "Snapshot",
    "AsyncCommands": "Commands",
    "AsyncCommandHandle": "CommandHandle",
    "AsyncFiles": "Files",
    "AsyncLines": "Lines",
    "AsyncContexts": "Contexts",
    "AsyncTransport": "Transport",
    "AsyncHTTPTransport": "HTTPTransport",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aiter_raw": "iter_raw",
    "aread": "read",
    "asynchronous": "synchronous",
}


def write(text: str, name: str) -> str:
    """The synchronous twin of a file."""
    text = re.sub(r"\bawait ", "", text)
    text = re.sub(r"\basync (def|with|for)\b", r"\1", text)
    text = re.sub(r"\b\w+\b", lambda word: WORDS.get(word[0], word[0]), text)
    left = re.search(r"\b(async|await|Async\w+|__a\w+__)\b", text)
    if left:
        raise SystemExit(f"tools/synchronous.py does not know {left[0]} of _async/{name}")
    return f"# `sdk/python/generate` writes this file from _async/{name}. Change nothing here.\n\n{text}"
