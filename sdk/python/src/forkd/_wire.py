"""What both clients know of HTTP."""

from __future__ import annotations

import math
import os
import ssl
import warnings
from importlib import metadata
from typing import Any, Optional, Union

import httpx

from ._address import Address
from ._call import Call
from ._policy import CONNECT
from .errors import ConnectionFailedError, ForkdError, ProtocolError, RequestTimeoutError

# The most of an answer that is read as a whole. A command's output is kept to 16 MiB by the daemon, and JSON may take six
# bytes for one.
LARGEST = 128 << 20
# The most of an error's answer.
LARGEST_ERROR = 1 << 20
# The longest line of an answer in lines.
LONGEST_LINE = 16 << 20
# What is read of a file at once.
PIECE = 1 << 18

try:
    VERSION = metadata.version("forkd")
except metadata.PackageNotFoundError:
    VERSION = "0"

Verify = Union[bool, str, ssl.SSLContext]


def headers(token: Optional[str]) -> dict[str, str]:
    """What goes with every request."""
    always = {"user-agent": f"forkd-python/{VERSION}", "accept-encoding": "identity"}
    return {**always, "authorization": f"Bearer {token}"} if token else always


def trust(address: Address, verify: Verify) -> Optional[ssl.SSLContext]:
    """Which certificates are good: those of the system, of a file, or all."""
    if not address.base.startswith("https:"):
        return None
    if isinstance(verify, ssl.SSLContext):
        return verify
    file = verify if isinstance(verify, str) else os.environ.get("SSL_CERT_FILE") or None
    try:
        context = ssl.create_default_context(cafile=file)
    except OSError as error:
        raise ConnectionFailedError(f"the certificates of {file} cannot be read: {error}") from error
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def warn_if_open(address: Address, token: Optional[str]) -> None:
    """A token is a secret, and networks have ears."""
    host = address.base.split("://")[1].rsplit(":", 1)[0]
    local = address.socket is not None or host in ("localhost", "[::1]") or host.startswith("127.")
    if token and not local and address.base.startswith("http:"):
        warnings.warn(f"the token goes to {address} unencrypted", stacklevel=4)


def options(address: Address, context: Optional[ssl.SSLContext]) -> dict[str, Any]:
    """How connections are made. Variables about proxies are for other hosts than the daemon's."""
    verify: Union[bool, ssl.SSLContext] = False if context is None else context
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=128, keepalive_expiry=5.0)
    return {"uds": address.socket, "verify": verify, "limits": limits, "trust_env": False}


def timeout(call: Call[Any], usual: float) -> httpx.Timeout:
    """A limit for each step of a request."""
    seconds = usual if call.timeout is None else call.timeout
    return httpx.Timeout(None if math.isinf(seconds) else seconds, connect=CONNECT, pool=None)


def failure(error: Exception, address: Address) -> ForkdError:
    """What an error of the HTTP library means to the caller."""
    if isinstance(error, httpx.ConnectTimeout):
        return ConnectionFailedError(f"the daemon at {address} cannot be reached: no answer", hint=_RUNNING)
    if isinstance(error, httpx.TimeoutException):
        return RequestTimeoutError("the daemon did not answer in time", hint="forkd ping says whether it answers at all")
    if isinstance(error, httpx.ConnectError) and "CERTIFICATE" in str(error):
        return ConnectionFailedError(
            f"the daemon at {address} has no certificate that this host trusts",
            hint="SSL_CERT_FILE or verify= names a file of certificates to trust, in PEM",
        )
    if isinstance(error, (httpx.ConnectError, OSError)):
        return ConnectionFailedError(f"the daemon at {address} cannot be reached: {error}", hint=_RUNNING)
    if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
        return ProtocolError(f"what answers at {address} is not forkd's daemon: {error}", hint=_OTHER)
    return ConnectionFailedError(f"the connection to the daemon broke: {error}", hint="its log may have the reason")


_OTHER = "address= or FORKD_ADDRESS names another"
_RUNNING = f"is it running? forkd serve starts one; {_OTHER}"
