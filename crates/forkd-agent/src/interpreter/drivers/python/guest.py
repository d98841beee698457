"""What code in a forkd sandbox can ask of it.

    import forkd_guest

    @forkd_guest.on_fork
    def reconnect():
        ...

A function given to `on_fork` runs in every fork of this sandbox, before the fork serves anybody; or, where code was running
when the sandbox was branched, when that code has ended. `identity` says which fork this is:
`{"id": ..., "index": ..., "generation": ...}`; it is empty until the first fork.
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
    """Gives every generator that this process has its own seed again. Only what was imported is touched.

    It also runs in a signal handler, between any two steps of running code. Returns what went wrong, as text."""
    problems = []
    for name, reseed in _GENERATORS:
        module = _sys.modules.get(name)
        try:
            if module is not None:
                reseed(module)
        except Exception as error:
            problems.append("reseeding " + name + ": " + _describe(error))
    return problems


def _reseed_tempfile(tempfile):
    # Its name generator has a seed of its own, which it renews after fork(2), and this was none.
    tempfile._name_sequence = None


def _reseed_numpy(numpy_random):
    lock = getattr(getattr(numpy_random.mtrand._rand, "_bit_generator", None), "lock", None)
    # Held by another thread it is free soon. Held by the code that this handler interrupts (a shuffle of objects that are
    # written in Python), to wait for it would be to wait for ever; the seed then follows when that code has ended.
    if lock is not None and not lock.acquire(timeout=0.5):
        raise RuntimeError("it is in use")
    if lock is not None:
        lock.release()
    numpy_random.seed([int.from_bytes(_os.urandom(4), "little") for _ in range(16)])


_GENERATORS = [
    ("random", lambda random: random.seed(_os.urandom(64))),
    ("tempfile", _reseed_tempfile),
    ("numpy.random", _reseed_numpy),
    ("torch", lambda torch: torch.manual_seed(int.from_bytes(_os.urandom(8), "little") >> 1)),
    # OpenSSL keeps its own generator in this process' memory.
    ("ssl", lambda ssl: ssl.RAND_add(_os.urandom(64), 64.0)),
]


def _after_fork(message):
    """Takes a new identity. Returns what went wrong, as text."""
    identity.clear()
    identity.update(message.get("identity") or {})
    _os.environ.update(message.get("env") or {})
    problems = _reseed()
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
