"""Models, and that they are those of docs/openapi.json."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fake
from forkd import FileType, ProtocolError, errors, models

HERE = Path(__file__).parent.parent
DOCUMENT = HERE.parent.parent / "docs" / "openapi.json"


def test_what_is_generated_is_current() -> None:
    check = subprocess.run([sys.executable, HERE / "generate", "--check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr


def test_the_version_is_forkds() -> None:
    versions = [
        re.search(r'^version = "(.*)"$', path.read_text(), re.MULTILINE)
        for path in (HERE / "pyproject.toml", HERE.parent.parent / "Cargo.toml")
    ]
    assert versions[0] is not None
    assert versions[1] is not None
    assert versions[0][1] == versions[1][1]


def test_every_code_has_its_exception() -> None:
    codes = json.loads(DOCUMENT.read_text())["components"]["schemas"]["ErrorCode"]["enum"]
    assert set(codes) == set(errors.FAMILIES)


def test_a_model_comes_from_json_and_goes_back() -> None:
    info = models.SandboxInfo.from_json(fake.SANDBOX)
    assert (info.state, info.owner, info.metadata["a"]) == ("running", None, "1")
    assert info["id"] == info.sandbox_id == fake.ID
    assert info.get("owner", 1) is None
    assert info.get("no such field", 1) == 1
    with pytest.raises(KeyError):
        info["no such field"]
    assert models.SandboxInfo.from_json(info.to_json()) == info


def test_what_is_as_it_would_be_anyway_is_not_sent() -> None:
    assert models.CreateSandboxes(snapshot_tag="base").to_json() == {"snapshot_tag": "base"}
    assert models.CreateSnapshot(image="i", tag="t", wait=False).to_json() == {"image": "i", "tag": "t", "wait": False}
    nested = models.CreateSandboxes(limits=models.Limits(memory_mib=64), egress=models.Egress(mode="list", allow=["a:1"]))
    assert nested.to_json() == {"limits": {"memory_mib": 64}, "egress": {"mode": "list", "allow": ["a:1"]}}


def test_a_newer_daemon_is_understood() -> None:
    newer: dict[str, Any] = {**fake.SANDBOX, "state": "dreaming", "colour": "blue", "limits": {"dreams": 7}}
    assert str(models.SandboxInfo.from_json(newer).state) == "dreaming"


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", None), ("id", 7), ("vcpus", "1"), ("vcpus", True), ("branches", {}), ("branches", [1]), ("metadata", {"a": 1})],
)
def test_what_is_no_answer_is_refused(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match=field):
        models.SandboxInfo.from_json({**fake.SANDBOX, field: value})
    with pytest.raises(ProtocolError):
        models.SandboxInfo.from_json([])


def test_e2bs_names() -> None:
    info = models.SandboxInfo.from_json({**fake.SANDBOX, "expires_at_unix": 61})
    assert info.end_at is not None
    assert (info.end_at - info.started_at).seconds == 60
    assert (info.template_id, info.cpu_count, info.memory_mb) == ("base", 1, 64)
    known = {"name": "tmp", "path": "/tmp", "kind": "directory", "size": 0, "mode": 493, "owner": "r", "group": "r"}
    file = models.FileInfo.from_json({**known, "modified_unix": 0})
    assert file.type is FileType.DIR
