"""A daemon over TLS that wants a token.

FORKD_TEST_REMOTE is where it is, FORKD_TEST_TOKEN its token, and FORKD_TEST_CERTIFICATE a file with its certificate.
"""

from __future__ import annotations

import os

import pytest

import forkd
from forkd import AsyncController, AsyncSandbox, Controller, Sandbox

REMOTE = os.environ.get("FORKD_TEST_REMOTE", "")
TOKEN = os.environ.get("FORKD_TEST_TOKEN", "")
CERTIFICATE = os.environ.get("FORKD_TEST_CERTIFICATE", "")

pytestmark = pytest.mark.skipif(not REMOTE, reason="FORKD_TEST_REMOTE names no daemon")


def test_with_a_token_and_a_certificate(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("FORKD_ADDRESS", REMOTE)
    clean.setenv("FORKD_TOKEN", TOKEN)
    clean.setenv("SSL_CERT_FILE", CERTIFICATE)
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
        assert sandbox.proxy_url(80).startswith(f"{REMOTE}/v1/sandboxes/{sandbox.id}/proxy/80/")
        # The WebSocket gets as far as the guest, too.
        with pytest.raises(forkd.ForkdError) as agentless:
            sandbox.commands.run("true")
        assert agentless.value.status is None or agentless.value.status >= 400
    Controller.shared().close()


async def test_the_same_asynchronously(clean: pytest.MonkeyPatch) -> None:
    async with AsyncController(REMOTE, TOKEN, verify=CERTIFICATE) as controller:
        async with await AsyncSandbox.create("base", controller=controller) as sandbox:
            assert await sandbox.is_running()


def test_without_either(clean: pytest.MonkeyPatch) -> None:
    with (
        Controller(REMOTE, verify=CERTIFICATE) as stranger,
        pytest.raises(forkd.AuthenticationError, match="FORKD_TOKEN") as refused,
    ):
        stranger.list_snapshots()
    assert refused.value.status == 401
    with Controller(REMOTE, TOKEN, verify=CERTIFICATE) as controller:
        (base,) = controller.spawn_sandboxes("base")
        with Controller(REMOTE, verify=CERTIFICATE) as other, pytest.raises(forkd.AuthenticationError):
            Sandbox(other, base).commands.run("true")
        controller.kill_sandbox(base.id)
    clean.delenv("SSL_CERT_FILE", raising=False)
    with Controller(REMOTE, TOKEN) as distrustful, pytest.raises(forkd.ConnectionFailedError, match="SSL_CERT_FILE"):
        distrustful.health()
