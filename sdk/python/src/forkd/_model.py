"""What every model of the API can do: come from JSON, go back to it, and be read like a dictionary.

What a daemon says is checked against the model's types. Fields that this client does not know are left out, so that an older
client understands a newer daemon; the words of a `Literal` are taken as they come for the same reason.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Literal, TypeVar, Union

from .errors import ProtocolError

M = TypeVar("M", bound="Model")


@dataclasses.dataclass(frozen=True)
class Model:
    """The base of all models."""

    @classmethod
    def from_json(cls: type[M], value: Any) -> M:
        """The model that this JSON is."""
        if not isinstance(value, dict):
            raise ProtocolError(f"expected {cls.__name__} in the daemon's answer")
        known = {}
        for name, (kind, needed) in _shape(cls).items():
            if value.get(name) is not None:
                known[name] = _decoded(kind, value[name], f"{cls.__name__}.{name}")
            elif needed:
                raise ProtocolError(f"there is no {cls.__name__}.{name} in the daemon's answer")
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """As JSON, without what is as it would be anyway."""
        value = {}
        for field in dataclasses.fields(self):
            own = getattr(self, field.name)
            if own is not None and own != _default(field):
                value[field.name] = _encoded(own)
        return value

    def __getitem__(self, name: str) -> Any:
        if name not in _shape(type(self)):
            raise KeyError(name)
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """A field by its name, as a dictionary has it."""
        return self[name] if name in _shape(type(self)) else default


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


_shapes: dict[type[Model], dict[str, tuple[Any, bool]]] = {}


def _shape(model: type[Model]) -> dict[str, tuple[Any, bool]]:
    """Of each field, its type, and whether it must be there."""
    if model not in _shapes:
        hints = typing.get_type_hints(model)
        _shapes[model] = {
            field.name: (hints[field.name], _default(field) is dataclasses.MISSING) for field in dataclasses.fields(model)
        }
    return _shapes[model]


def _decoded(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union:
        return None if value is None else _decoded(arguments[0], value, where)
    if origin is list and isinstance(value, list):
        return [_decoded(arguments[0], item, where) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _decoded(arguments[1], item, where) for key, item in value.items()}
    if isinstance(kind, type) and origin is None and issubclass(kind, Model):
        return kind.from_json(value)
    simple = str if origin is Literal else kind
    # To Python, True is a number.
    if simple in (str, bool, int) and type(value) is simple:
        return value
    raise ProtocolError(f"{where} is not as expected in the daemon's answer")


def _encoded(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    return value
