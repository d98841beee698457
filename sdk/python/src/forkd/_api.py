"""Every request of the API that the clients make, one function each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Optional

from . import models
from ._call import BYTES, LINES, TAR, Call, Values, delete, get, make, many, model, nothing, optional, part, post, put, query
from ._policy import GRACE, LONG, USUAL
from .errors import InvalidArgumentError


def health() -> Call[models.Health]:
    return get("/healthz", model(models.Health))


def version() -> Call[models.Version]:
    return get("/version", model(models.Version))


def caller() -> Call[models.Caller]:
    return get("/v1/caller", model(models.Caller))


def problems() -> Call[models.ProblemList]:
    return get("/v1/problems", model(models.ProblemList))


def resolve_name(name: str) -> Call[models.Named]:
    return get(f"/v1/names/{part(name)}", model(models.Named))


def metrics() -> Call[str]:
    return dataclasses.replace(get("/metrics", _text), accept="*/*")


def ca() -> Call[str]:
    return dataclasses.replace(get("/v1/ca", _text), accept="*/*")


def events(after: Optional[str], sandbox: Sequence[str], snapshot: Sequence[str], event: Sequence[str]) -> Call[models.Event]:
    """A stream without an end."""
    call = get("/v1/events", model(models.Event), after=after, sandbox=sandbox, snapshot=snapshot, event=event)
    return dataclasses.replace(call, accept=LINES, timeout=math.inf)


def create_sandboxes(body: models.CreateSandboxes) -> Call[models.CreatedSandboxes]:
    return make("/v1/sandboxes", model(models.CreatedSandboxes), body).within(LONG)


def list_sandboxes(
    state: Optional[str] = None,
    snapshot_tag: Optional[str] = None,
    metadata: Optional[str] = None,
    limit: Optional[int] = None,
    after: Optional[str] = None,
) -> Call[models.SandboxList]:
    values = {"state": state, "snapshot_tag": snapshot_tag, "metadata": metadata, "limit": limit, "after": after}
    return get("/v1/sandboxes", model(models.SandboxList), **values)


def get_sandbox(sandbox: str) -> Call[models.SandboxInfo]:
    return get(_sandbox(sandbox), model(models.SandboxInfo))


def remove_sandbox(sandbox: str) -> Call[None]:
    return delete(_sandbox(sandbox), nothing)


def branch_sandbox(sandbox: str, body: models.BranchSandbox) -> Call[models.SnapshotInfo]:
    return make(_sandbox(sandbox, "/branch"), model(models.SnapshotInfo), body).within(LONG)


def pause_sandbox(sandbox: str) -> Call[models.SandboxInfo]:
    return post(_sandbox(sandbox, "/pause"), model(models.SandboxInfo), repeatable=True)


def resume_sandbox(sandbox: str) -> Call[models.SandboxInfo]:
    return post(_sandbox(sandbox, "/resume"), model(models.SandboxInfo), repeatable=True)


def rollback_sandbox(sandbox: str, tag: str) -> Call[models.SandboxInfo]:
    return post(_sandbox(sandbox, "/rollback"), model(models.SandboxInfo), models.Rollback(tag=tag)).within(LONG)


def set_ttl(sandbox: str, seconds: Optional[int]) -> Call[models.SandboxInfo]:
    return put(_sandbox(sandbox, "/ttl"), model(models.SandboxInfo), models.SetTtl(ttl_secs=seconds))


def set_egress(sandbox: str, egress: models.Egress) -> Call[models.SandboxInfo]:
    return put(_sandbox(sandbox, "/egress"), model(models.SandboxInfo), egress)


def set_bandwidth(sandbox: str, body: models.SetBandwidth) -> Call[models.SandboxInfo]:
    return put(_sandbox(sandbox, "/bandwidth"), model(models.SandboxInfo), body)


def stats(sandbox: str) -> Call[models.SandboxStats]:
    return get(_sandbox(sandbox, "/stats"), model(models.SandboxStats))


def console(sandbox: str, size: Optional[int]) -> Call[str]:
    return dataclasses.replace(get(_sandbox(sandbox, "/console"), _text, bytes=size), accept="text/plain")


def execute(sandbox: str, body: models.Exec) -> Call[models.Executed]:
    return post(_sandbox(sandbox, "/exec"), model(models.Executed), body).within(body.timeout_secs + GRACE)


def evaluate(sandbox: str, body: models.Eval) -> Call[models.Evaluated]:
    return post(_sandbox(sandbox, "/eval"), model(models.Evaluated), body).within(body.timeout_secs + GRACE)


def interact(sandbox: str) -> str:
    """The path of a WebSocket."""
    return _sandbox(sandbox, "/exec")


def list_contexts(sandbox: str) -> Call[list[models.CodeContext]]:
    return get(_sandbox(sandbox, "/contexts"), many(models.CodeContext))


def create_context(sandbox: str, body: models.CreateCodeContext) -> Call[models.CodeContext]:
    return post(_sandbox(sandbox, "/contexts"), model(models.CodeContext), body)


def remove_context(sandbox: str, context: str) -> Call[None]:
    return delete(_sandbox(sandbox, f"/contexts/{part(context)}"), nothing)


def restart_context(sandbox: str, context: str) -> Call[None]:
    return post(_sandbox(sandbox, f"/contexts/{part(context)}/restart"), nothing)


def interrupt_context(sandbox: str, context: str, body: models.Interrupt) -> Call[models.Interrupted]:
    path = _sandbox(sandbox, f"/contexts/{part(context)}/interrupt")
    return post(path, model(models.Interrupted), body).within(LONG)


def list_processes(sandbox: str) -> Call[list[models.Process]]:
    return get(_sandbox(sandbox, "/processes"), many(models.Process))


def start_process(sandbox: str, body: models.StartProcess) -> Call[models.StartedProcess]:
    return post(_sandbox(sandbox, "/processes"), model(models.StartedProcess), body)


def connect_process(sandbox: str, pid: int) -> str:
    """The path of a WebSocket."""
    return _sandbox(sandbox, f"/processes/{pid}")


def signal_process(sandbox: str, pid: int, signal: models.Signal) -> Call[None]:
    return post(_sandbox(sandbox, f"/processes/{pid}/signal"), nothing, models.SendSignal(signal=signal))


def process_stdin(sandbox: str, pid: int, close: bool = False) -> Call[None]:
    """What the program reads comes with the call. The daemon waits a minute for the program to take it."""
    path = _sandbox(sandbox, f"/processes/{pid}/stdin") + query({"close": close or None})
    return Call("POST", path, nothing, headers={"content-type": BYTES}, timeout=USUAL + GRACE)


def read_file(sandbox: str, path: str, user: Optional[str], archive: bool = False) -> Call[bytes]:
    call = get(_sandbox(sandbox, "/files"), bytes, path=path, user=user)
    return dataclasses.replace(call, accept=TAR if archive else BYTES)


def write_file(sandbox: str, path: str, user: Optional[str], archive: bool = False) -> Call[None]:
    """What is written comes with the call, as a body of its own."""
    path = _sandbox(sandbox, "/files") + query({"path": path, "user": user})
    return Call("PUT", path, nothing, headers={"content-type": TAR if archive else BYTES})


def remove_file(sandbox: str, path: str, user: Optional[str]) -> Call[None]:
    return delete(_sandbox(sandbox, "/files"), nothing, path=path, user=user)


def file_info(sandbox: str, path: str, user: Optional[str]) -> Call[models.FileInfo]:
    return get(_sandbox(sandbox, "/files/info"), model(models.FileInfo), path=path, user=user)


def list_files(
    sandbox: str, path: str, user: Optional[str], limit: Optional[int] = None, after: Optional[str] = None
) -> Call[models.FileList]:
    values = {"path": path, "user": user, "limit": limit, "after": after}
    return get(_sandbox(sandbox, "/files/list"), model(models.FileList), **values)


def proxy(sandbox: str, port: int, path: str) -> str:
    """The path at which a port of a sandbox is."""
    if not 0 < port < 65536:
        raise InvalidArgumentError(f"invalid port: {port} (expected 1-65535)")
    return _sandbox(sandbox, f"/proxy/{port}/{path.lstrip('/')}")


def create_snapshot(body: models.CreateSnapshot) -> Call[models.SnapshotInfo]:
    return make("/v1/snapshots", model(models.SnapshotInfo), body).within(math.inf)


def build_snapshot(body: models.BuildSnapshot) -> Call[models.BuiltSnapshot]:
    return make("/v1/snapshots/build", model(models.BuiltSnapshot), body).within(math.inf)


def list_snapshots() -> Call[models.SnapshotList]:
    return get("/v1/snapshots", model(models.SnapshotList))


def get_snapshot(tag: str) -> Call[models.SnapshotInfo]:
    return get(f"/v1/snapshots/{part(tag)}", model(models.SnapshotInfo))


def remove_snapshot(tag: str, cascade: bool, all_names: bool = False) -> Call[Optional[models.RemovedSnapshots]]:
    values = {"cascade": cascade or None, "all_names": all_names or None}
    return delete(f"/v1/snapshots/{part(tag)}", optional(models.RemovedSnapshots), **values)


def snapshot_history(tag: str) -> Call[models.SnapshotHistory]:
    return get(f"/v1/snapshots/{part(tag)}/history", model(models.SnapshotHistory))


def verify_snapshot(tag: str) -> Call[models.SnapshotVerification]:
    return post(f"/v1/snapshots/{part(tag)}/verify", model(models.SnapshotVerification)).within(math.inf)


def compact_snapshot(tag: str) -> Call[models.SnapshotInfo]:
    return post(f"/v1/snapshots/{part(tag)}/compact", model(models.SnapshotInfo)).within(math.inf)


def publish_snapshot(tag: str, body: models.Publish) -> Call[models.SnapshotInfo]:
    return put(f"/v1/snapshots/{part(tag)}/public", model(models.SnapshotInfo), body)


def prune_snapshots(body: models.PruneSnapshots) -> Call[models.PrunedSnapshots]:
    return post("/v1/snapshots/prune", model(models.PrunedSnapshots), body).within(math.inf)


def resolve_snapshot(body: models.ResolveSnapshot) -> Call[models.ResolvedSnapshot]:
    return post("/v1/snapshots/resolve", model(models.ResolvedSnapshot), body, repeatable=True).within(math.inf)


def add_snapshot_signature(body: models.AddSnapshotSignature) -> Call[models.SnapshotSignature]:
    # A key that has signed does not sign again.
    return post("/v1/snapshots/signatures", model(models.SnapshotSignature), body, repeatable=True).within(math.inf)


def add_snapshot_name(tag: str, name: str, force: bool) -> Call[models.SnapshotInfo]:
    path = f"/v1/snapshots/{part(tag)}/names/{part(name)}" + query({"force": force or None})
    return Call("PUT", path, model(models.SnapshotInfo), repeatable=True)


def remove_snapshot_name(tag: str, name: str) -> Call[Optional[models.SnapshotInfo]]:
    return delete(f"/v1/snapshots/{part(tag)}/names/{part(name)}", optional(models.SnapshotInfo))


def save_snapshot(tag: str) -> Call[bytes]:
    """What is answered is read in pieces."""
    return dataclasses.replace(get(f"/v1/snapshots/{part(tag)}/archive", bytes), accept=TAR, timeout=math.inf)


def load_snapshot(tag: Optional[str]) -> Call[models.SnapshotInfo]:
    """The archive comes with the call."""
    path = "/v1/snapshots/load" + query({"tag": tag})
    return Call("POST", path, model(models.SnapshotInfo), headers={"content-type": BYTES}, timeout=math.inf)


def pull_snapshot(body: models.PullSnapshot) -> Call[models.SnapshotInfo]:
    return make("/v1/snapshots/pull", model(models.SnapshotInfo), body).within(math.inf)


def push_snapshot(tag: str, body: models.PushSnapshot) -> Call[models.PushedSnapshot]:
    return make(f"/v1/snapshots/{part(tag)}/push", model(models.PushedSnapshot), body).within(math.inf)


def list_repository(body: models.ListRepository) -> Call[models.RepositoryTags]:
    call = post("/v1/snapshots/repository", model(models.RepositoryTags), body, repeatable=True)
    return call.within(math.inf)


def list_images() -> Call[models.ImageList]:
    return get("/v1/images", model(models.ImageList))


def get_image(image: str) -> Call[models.ImageInfo]:
    return get(f"/v1/images/{part(image)}", model(models.ImageInfo))


def pull_image(body: models.PullImage) -> Call[models.ImageInfo]:
    return make("/v1/images/pull", model(models.ImageInfo), body).within(math.inf)


def debian_image(body: models.DebianImage) -> Call[models.ImageInfo]:
    return make("/v1/images/debian", model(models.ImageInfo), body).within(math.inf)


def build_image(values: Values) -> Call[models.ImageInfo]:
    """What is built comes with the call, as an archive."""
    path = "/v1/images/build" + query(values)
    return Call("POST", path, model(models.ImageInfo), headers={"content-type": TAR}, timeout=math.inf)


def import_image(name: str, size_mib: Optional[int]) -> Call[models.ImageInfo]:
    """The archive comes with the call."""
    path = "/v1/images/import" + query({"name": name, "size_mib": size_mib})
    return Call("POST", path, model(models.ImageInfo), headers={"content-type": BYTES}, timeout=math.inf)


def prune_images(body: models.PruneImages) -> Call[models.PrunedImages]:
    return post("/v1/images/prune", model(models.PrunedImages), body).within(math.inf)


def publish_image(image: str, body: models.Publish) -> Call[models.ImageInfo]:
    return put(f"/v1/images/{part(image)}/public", model(models.ImageInfo), body)


def remove_image(image: str) -> Call[Optional[models.RemovedImage]]:
    return delete(f"/v1/images/{part(image)}", optional(models.RemovedImage))


def list_kernels() -> Call[models.KernelList]:
    return get("/v1/kernels", model(models.KernelList))


def add_kernel(body: models.AddKernel) -> Call[models.Kernel]:
    return make("/v1/kernels", model(models.Kernel), body).within(math.inf)


def import_kernel(default: bool) -> Call[models.Kernel]:
    """The archive comes with the call."""
    path = "/v1/kernels/import" + query({"default": default or None})
    return Call("POST", path, model(models.Kernel), headers={"content-type": TAR}, timeout=math.inf)


def choose_kernel(body: models.ChooseKernel) -> Call[models.Kernel]:
    return put("/v1/kernels/default", model(models.Kernel), body)


def remove_kernel(kernel: str, force: bool) -> Call[Optional[models.Kernel]]:
    return delete(f"/v1/kernels/{part(kernel)}", optional(models.Kernel), force=force or None)


def _sandbox(sandbox: str, below: str = "") -> str:
    return f"/v1/sandboxes/{part(sandbox)}{below}"


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
