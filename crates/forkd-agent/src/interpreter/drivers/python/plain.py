"""Lists and dictionaries as JSON: a result's `json`, for the types for which E2B has one."""

import enum
import math
import sys

MAX_PARTS = 500_000
MAX_DEPTH = 250
MAX_INTEGER = 1 << 64

# By name: the module is imported only if there is such a value.
_WITH_ISO_FORMAT = ("datetime.datetime", "datetime.date", "datetime.time")


class NotPlain(Exception):
    pass


def plain(value):
    """A copy of standard types only. Numbers that JSON does not have are null."""
    return _plain(value, [MAX_PARTS], 0)


def _plain(value, left, depth):
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise NotPlain
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return _plain(value.value, left, depth)
    if issubclass(kind, str):
        return _text(value)
    if issubclass(kind, int):
        return _integer(value)
    if kind is float:
        return _number(value)
    if issubclass(kind, dict):
        return {_key(key): _plain(part, left, depth + 1) for key, part in value.items()}
    if issubclass(kind, list) or kind is tuple:
        return [_plain(part, left, depth + 1) for part in value]
    text = _of_library(value, kind)
    if text is not None:
        return text
    if hasattr(kind, "__dataclass_fields__"):
        fields = kind.__dataclass_fields__
        names = [name for name in getattr(value, "__dict__", fields) if name in fields and not name.startswith("_")]
        return {name: _plain(getattr(value, name), left, depth + 1) for name in names}
    return _of_numpy(value, left, depth)


def _of_library(value, kind):
    name = kind.__module__ + "." + kind.__name__
    if name in _WITH_ISO_FORMAT:
        return value.isoformat()
    return str(value) if name == "uuid.UUID" else None


def _of_numpy(value, left, depth):
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.kind not in "biufM":
        raise NotPlain
    if value.ndim:
        if value.size > left[0]:
            raise NotPlain
        return [_of_numpy_part(part, left, depth) for part in value]
    return _of_numpy_part(value, left, depth)


def _of_numpy_part(value, left, depth):
    if getattr(value, "ndim", 0):
        return _of_numpy(value, left, depth + 1)
    left[0] -= 1
    if value.dtype.kind == "f":
        # By the digits: float32(0.1) is 0.1, and not what is nearest to it.
        return _number(float(str(value)))
    if value.dtype.kind == "M":
        return value.astype("datetime64[us]").item().isoformat()
    return value.item()


def _key(key):
    if isinstance(key, enum.Enum):
        key = key.value
    kind = type(key)
    if key is None or kind is bool or kind is float:
        number = _number(key) if kind is float else key
        return "null" if number is None else str(number).lower()
    if issubclass(kind, str):
        return _text(key)
    if issubclass(kind, int):
        return str(_integer(key))
    text = _of_library(key, kind)
    if text is None:
        raise NotPlain
    return text


def _text(value):
    text = str.__str__(value)
    text.encode()  # refuses half a surrogate pair
    return text


def _integer(value):
    number = int.__int__(value)
    if not -(MAX_INTEGER >> 1) <= number < MAX_INTEGER:
        raise NotPlain
    return number


def _number(value):
    return value if math.isfinite(value) else None
