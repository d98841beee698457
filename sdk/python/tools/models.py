"""Writes the models of the SDK: a data class for every type of docs/openapi.json."""

from __future__ import annotations

import textwrap
from typing import Any

# The SDK's own classes have these names.
RENAMED = {"Sandbox": "SandboxInfo", "Snapshot": "SnapshotInfo", "Image": "ImageInfo"}
# Models whose fields have other names in E2B's client, and what gives them those.
NAMES = {"SandboxInfo": "SandboxNames", "FileInfo": "FileNames"}
# Bodies that are bytes, a type that is only a part of another, and a message that is a word or an object.
SKIPPED = {"Archive", "What", "ExecInput"}

HEADER = '''"""The types of forkd's API, one class each.

Name the fields when you make one: their order is the document's, and may change.

`sdk/python/generate` writes this file from docs/openapi.json. Change nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional

from ._model import Model
from ._names import {names}
'''

WIDTH = 126


def write(document: dict[str, Any]) -> str:
    """The text of models.py."""
    generator = Generator(document["components"]["schemas"])
    for name in sorted(generator.schemas):
        if name not in SKIPPED:
            generator.add(name)
    names = sorted(generator.written)
    exported = "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n"
    literals = "".join(sorted(text for text in generator.written.values() if text.startswith("\n#")))
    classes = [text for text in generator.written.values() if not text.startswith("\n#")]
    header = HEADER.format(names=", ".join(sorted(NAMES.values())))
    return "\n".join([header, exported + literals, *classes])


class Generator:
    def __init__(self, schemas: dict[str, Any]) -> None:
        self.schemas = schemas
        self.written: dict[str, str] = {}

    def add(self, name: str) -> None:
        schema = self.schemas[name]
        if "enum" in schema:
            words = ", ".join(f'"{word}"' for word in schema["enum"])
            comment = comments(schema.get("description") or f"The values of {name}.")
            line = f"{name} = Literal[{words}]\n"
            if len(line) > WIDTH:
                inner = "".join(f'    "{word}",\n' for word in schema["enum"])
                line = f"{name} = Literal[\n{inner}]\n"
            self.written[name] = f"\n{comment}{line}"
        else:
            properties, required = self.fields(schema)
            self.data_class(RENAMED.get(name, name), schema.get("description"), properties, required)

    def fields(self, schema: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """The fields of an object; of all parts of one; or, with choices, of all of them, each of which may be absent."""
        if "$ref" in schema:
            return self.fields(self.schemas[schema["$ref"].rsplit("/", 1)[1]])
        if "allOf" in schema:
            parts = [self.fields(part) for part in schema["allOf"]]
            properties = {name: it for part, _ in parts for name, it in part.items()}
            return properties, {name for _, names in parts for name in names}
        if "oneOf" in schema:
            choices = [self.fields(choice) for choice in schema["oneOf"]]
            properties = {}
            for part, _ in choices:
                for name, it in part.items():
                    if "enum" in it and name in properties:
                        it = {**it, "enum": [*properties[name]["enum"], *it["enum"]]}
                    properties[name] = it
            return properties, set.intersection(*(names for _, names in choices))
        return schema.get("properties", {}), set(schema.get("required", []))

    def data_class(self, name: str, description: str | None, properties: dict[str, Any], required: set[str]) -> None:
        bases = f"{NAMES[name]}, Model" if name in NAMES else "Model"
        lines = [f"\n@dataclass(frozen=True)\nclass {name}({bases}):\n"]
        lines.append(doc(description or f"The answer's type {name}."))
        for needed in [True, False]:
            for key, schema in properties.items():
                if (key in required) == needed:
                    lines.append(self.field(name, key, schema, needed))
        self.written[name] = "".join(lines)

    def field(self, owner: str, key: str, schema: dict[str, Any], needed: bool) -> str:
        kind, default = self.kind(owner, key, schema), ""
        if not needed:
            if kind.startswith(("list[", "dict[")):
                default = f" = field(default_factory={kind[:4]})"
            elif "default" in schema:
                default = f" = {literal(schema['default'])}"
            elif kind == "bool":
                default = " = False"
            else:
                kind = kind if kind.startswith("Optional[") else f"Optional[{kind}]"
                default = " = None"
        line = f"\n    {key}: {kind}{default}\n"
        description = described(schema)
        return line + doc(description) if description else line

    def kind(self, owner: str, key: str, schema: dict[str, Any]) -> str:
        if "$ref" in schema:
            name = str(schema["$ref"]).rsplit("/", 1)[1]
            return RENAMED.get(name, name)
        if "oneOf" in schema:
            (choice,) = [choice for choice in schema["oneOf"] if choice != {"type": "null"}]
            return f"Optional[{self.kind(owner, key, choice)}]"
        if "enum" in schema:
            return "Literal[" + ", ".join(f'"{word}"' for word in schema["enum"]) + "]"
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        (single,) = [kind for kind in kinds if kind != "null"]
        text = self.single(owner, key, single, schema)
        return f"Optional[{text}]" if "null" in kinds else text

    def single(self, owner: str, key: str, single: str, schema: dict[str, Any]) -> str:
        if single == "array":
            return f"list[{self.kind(owner, key, schema['items'])}]"
        if single == "object" and "properties" not in schema:
            return f"dict[str, {self.kind(owner, key, schema['additionalProperties'])}]"
        if single == "object":
            name = owner + "".join(word.title() for word in key.split("_"))
            self.data_class(name, schema.get("description"), *self.fields(schema))
            return name
        simple: dict[str, str] = {"string": "str", "integer": "int", "boolean": "bool"}
        return simple[single]


def literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def described(schema: dict[str, Any]) -> str | None:
    if "description" in schema:
        return str(schema["description"])
    return next((choice["description"] for choice in schema.get("oneOf", []) if "description" in choice), None)


def doc(text: str) -> str:
    text = " ".join(text.split())
    wrapped = textwrap.wrap(text, WIDTH - 10)
    if len(wrapped) == 1:
        return f'    """{wrapped[0]}"""\n'
    return '    """' + "\n    ".join(wrapped) + '\n    """\n'


def comments(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(" ".join(text.split()), WIDTH - 2))
