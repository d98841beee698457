"""What tests are given."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

import fake
from forkd import AsyncController, Controller

# Variables that would lead to somebody's daemon.
VARIABLES = [
    "FORKD_ADDRESS",
    "FORKD_URL",
    "FORKD_TOKEN",
    "FORKD_TOKEN_FILE",
    "FORKD_SOCKET",
    "FORKD_HOME",
    "FORKD_TAG",
    "FORKD_MACHINE",
    "FORKD_AUTOSTART",
    "FORKD_BIN",
]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no daemon."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


@pytest.fixture
def daemon(clean: pytest.MonkeyPatch) -> Iterator[fake.Fake]:
    """A daemon that answers as it is told to."""
    with fake.running() as it:
        yield it


@pytest.fixture
def controller(daemon: fake.Fake) -> Iterator[Controller]:
    with Controller(daemon.address, "secret", timeout=5) as it:
        yield it


@pytest.fixture
async def async_controller(daemon: fake.Fake) -> AsyncIterator[AsyncController]:
    async with AsyncController(daemon.address, "secret", timeout=5) as it:
        yield it


@pytest.fixture
def real() -> Iterator[Controller]:
    """The daemon that the environment names."""
    if "FORKD_TEST_DAEMON" not in os.environ:
        pytest.skip("FORKD_TEST_DAEMON names no daemon")
    with Controller(os.environ["FORKD_TEST_DAEMON"]) as it:
        yield it
