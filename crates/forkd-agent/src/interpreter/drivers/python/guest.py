"""What code in a forkd sandbox can ask of it.

    import forkd_guest

    @forkd_guest.on_fork
    def reconnect():
        ...

A function given to `on_fork` runs in every fork of this sandbox, before the fork serves anybody. `identity` says which fork
this is: `{"id": ..., "index": ..., "generation": ...}`; it is empty until the first fork.
"""

import os as _os
import sys as _sys

identity = {}
_hooks = []


def on_fork(function):
    """Runs `function` without arguments after every fork. Returns it, so it serves as a decorator."""
    if not callable(function):
        raise TypeError("on_fork needs a function, not " + type(function).__name__)
    _hooks.append(function)
    return function


def display(*objects):
    """Shows objects as rich results, like IPython's display."""
    from forkd_guest_display import display as show

    show(*objects)


def _reseed():
    """Gives every generator that this process has its own seed again. Only what was imported is touched."""
    modules = _sys.modules
    random = modules.get("random")
    if random is not None:
        random.seed(_os.urandom(64))
    tempfile = modules.get("tempfile")
    if tempfile is not None:
        # Its name generator has a seed of its own, which it renews after fork(2), and this was none.
        tempfile._name_sequence = None
    numpy_random = modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed([int.from_bytes(_os.urandom(4), "little") for _ in range(16)])
    torch = modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):
        torch.manual_seed(int.from_bytes(_os.urandom(8), "little") >> 1)
    ssl = modules.get("ssl")
    if ssl is not None:
        # OpenSSL keeps its own generator in this process' memory.
        ssl.RAND_add(_os.urandom(64), 64.0)


def _after_fork(message):
    """Takes a new identity. Returns what went wrong, as text."""
    problems = []
    identity.clear()
    identity.update(message.get("identity") or {})
    _os.environ.update(message.get("env") or {})
    try:
        _reseed()
    except Exception as error:
        problems.append("reseeding: " + _describe(error))
    for hook in list(_hooks):
        try:
            hook()
        except BaseException as error:
            problems.append("hook " + getattr(hook, "__name__", "?") + ": " + _describe(error))
    return problems


def _describe(error):
    try:
        return type(error).__name__ + ": " + str(error)
    except Exception:
        return type(error).__name__
