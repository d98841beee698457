/**
 * What goes wrong, one class a family.
 *
 * ```text
 * ForkdError ─┬─ ConnectionFailedError   no daemon answers, or the connection broke
 *             ├─ TimedOutError ──────────┬─ RequestTimeoutError      the daemon did not answer in time
 *             │                          ├─ CommandTimeoutError      a command took too long
 *             │                          └─ GuestTimeoutError ─── EvaluationTimeoutError: code took too long
 *             ├─ ProtocolError           the answer is not one of forkd's
 *             ├─ InvalidArgumentError    the request is invalid
 *             ├─ AuthenticationError     no token, or an unknown one
 *             ├─ ForbiddenError          the token does not allow this
 *             ├─ NotFoundError ────────── SandboxFileNotFoundError (also a FileError)
 *             ├─ FileError ────────────── NotEnoughSpaceError: the sandbox's disk is full
 *             ├─ ConflictError           the name is taken, or the state does not allow it
 *             ├─ CapacityError           too many, or no memory or disk left on the host
 *             ├─ BuildError              an image cannot be built
 *             ├─ GuestError              the guest gave no usable answer (GuestTimeoutError is one, too)
 *             ├─ UpstreamError           a registry or a mirror failed
 *             ├─ ServerError             the daemon failed, is starting or is stopping
 *             ├─ CommandExitError        a command failed
 *             └─ EvaluationError         code failed
 * ```
 *
 * `code` is the daemon's word for the error; `hint` says what to do, and `hintCode` the same for programs. `requestId` finds the
 * request in the daemon's log. A request that was aborted rejects with its signal's reason, which is not a `ForkdError`.
 */

import type { Execution } from "./results.js";

export interface ErrorDetails {
  code?: string | undefined;
  hint?: string | undefined;
  hintCode?: string | undefined;
  status?: number | undefined;
  requestId?: string | undefined;
  cause?: unknown;
}

/** Anything that goes wrong between a caller and a sandbox. */
export class ForkdError extends Error {
  readonly code: string | undefined;
  readonly hint: string | undefined;
  readonly hintCode: string | undefined;
  readonly status: number | undefined;
  readonly requestId: string | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(details.hint ? `${message} (${details.hint})` : message, "cause" in details ? { cause: details.cause } : undefined);
    this.name = new.target.name;
    this.code = details.code;
    this.hint = details.hint;
    this.hintCode = details.hintCode;
    this.status = details.status;
    this.requestId = details.requestId;
  }
}

/** No daemon answers, or the connection to it broke. */
export class ConnectionFailedError extends ForkdError {}

/** Something took too long. */
export class TimedOutError extends ForkdError {}

/** The daemon did not answer in time. */
export class RequestTimeoutError extends TimedOutError {}

/** The answer is not one of forkd's daemon, or not one that this client understands. */
export class ProtocolError extends ForkdError {}

/** The request is invalid. */
export class InvalidArgumentError extends ForkdError {}

/** There is no token, or the daemon does not know it. */
export class AuthenticationError extends ForkdError {}

/** The token does not allow this. */
export class ForbiddenError extends ForkdError {}

/** There is no such sandbox, snapshot, image, kernel or file. */
export class NotFoundError extends ForkdError {}

/** A file of a sandbox is of the wrong kind, or its user may not do this. */
export class FileError extends ForkdError {
  static override [Symbol.hasInstance](value: unknown): boolean {
    return isInstance(this, value) || (this === FileError && value instanceof SandboxFileNotFoundError);
  }
}

/** The sandbox has no such file. It is a `FileError`, too. */
export class SandboxFileNotFoundError extends NotFoundError {}

/** The sandbox's disk is full. */
export class NotEnoughSpaceError extends FileError {}

/** The name is taken, others depend on it, or its state does not allow this. */
export class ConflictError extends ForkdError {}

/** There are too many already, or the host has no memory or disk left. */
export class CapacityError extends ForkdError {}

/** An image or snapshot cannot be built, or a command of the build failed. */
export class BuildError extends ForkdError {}

/** The guest gave no usable answer. */
export class GuestError extends ForkdError {
  static override [Symbol.hasInstance](value: unknown): boolean {
    return isInstance(this, value) || (this === GuestError && value instanceof GuestTimeoutError);
  }
}

/** The guest took too long to answer. It is a `GuestError`, too. */
export class GuestTimeoutError extends TimedOutError {}

/** A registry or a mirror gave no usable answer. */
export class UpstreamError extends ForkdError {}

/** The daemon failed, is starting or is stopping. */
export class ServerError extends ForkdError {}

/** A command ended with an exit code other than 0. */
export class CommandExitError extends ForkdError {
  constructor(
    readonly exitCode: number,
    readonly stdout: string,
    readonly stderr: string,
  ) {
    const last = stderr.trim().split("\n").at(-1);
    super(`the command ended with ${exitCode}${last ? `: ${last}` : ""}`);
  }
}

/** A command was ended because its time was over. */
export class CommandTimeoutError extends TimedOutError {
  constructor(
    readonly timeout: number,
    readonly stdout: string,
    readonly stderr: string,
  ) {
    super(`the command did not end within ${timeout} s`, { hint: "the option timeout gives it more" });
  }
}

/** Code failed. */
export class EvaluationError extends ForkdError {
  constructor(
    /** The exception's name. */
    readonly exception: string,
    readonly value: string,
    readonly traceback: string,
  ) {
    super(`${exception}: ${value}`);
  }
}

/** Code was interrupted because its time was over. `execution` has all output until then. */
export class EvaluationTimeoutError extends GuestTimeoutError {
  constructor(
    readonly timeout: number,
    readonly execution: Execution,
  ) {
    super(`the code did not end within ${timeout} s`, { hint: "the option timeout gives it more" });
  }
}

type Family = new (message: string, details?: ErrorDetails) => ForkdError;

/** The class of each of the daemon's codes. */
export const FAMILIES: Readonly<Record<string, Family>> = {
  malformed: InvalidArgumentError,
  method_not_allowed: InvalidArgumentError,
  too_large: InvalidArgumentError,
  unsupported_media_type: InvalidArgumentError,
  range_not_satisfiable: InvalidArgumentError,
  unauthorized: AuthenticationError,
  forbidden: ForbiddenError,
  not_trusted: ForbiddenError,
  not_found: NotFoundError,
  file_not_found: SandboxFileNotFoundError,
  permission_denied: FileError,
  is_directory: FileError,
  not_directory: FileError,
  guest_disk_full: NotEnoughSpaceError,
  request_timeout: RequestTimeoutError,
  name_taken: ConflictError,
  has_dependents: ConflictError,
  wrong_state: ConflictError,
  sandbox_ended: ConflictError,
  idempotency_mismatch: ConflictError,
  too_many: CapacityError,
  no_memory: CapacityError,
  no_disk: CapacityError,
  build_failed: BuildError,
  guest_failed: GuestError,
  port_closed: GuestError,
  guest_timeout: GuestTimeoutError,
  upstream_failed: UpstreamError,
  unavailable: ServerError,
  internal: ServerError,
};

export const TOKEN_HINT = "FORKD_TOKEN or the option token gives a token; forkd token create makes one";

/** The daemon's hints in words of this client. Other hints are shown as they come. */
export const HINTS: Readonly<Record<string, string>> = {
  list_sandboxes: "listSandboxes() lists those there are",
  list_snapshots: "listSnapshots() lists those there are",
  list_images: "listImages() lists those there are",
  list_kernels: "listKernels() lists those there are",
  needs_token: TOKEN_HINT,
  remove_dependents: "remove them first, or all with { cascade: true }",
  remove_names: "remove those names first, or all with { allNames: true }",
  move_name: "choose another name, or move it with { force: true }",
  confirm_push: "push it with { yes: true } if everybody who can pull it may see that memory",
  verify_snapshot: "verifySnapshot() names the damaged file",
};

const FOREIGN = "FORKD_ADDRESS or the option address names another";

/** The error that an answer of 400 or more is. */
export function refusal(status: number, body: string, requestId?: string): ForkdError {
  let said: unknown;
  try {
    said = JSON.parse(body);
  } catch {
    said = undefined;
  }
  if (typeof said !== "object" || said === null || typeof (said as { error?: unknown }).error !== "string") {
    const message = `what answers is not forkd's daemon: status ${status} without a reason`;
    return new ProtocolError(message, { status, requestId, hint: FOREIGN });
  }
  return fromBody(said as Record<string, unknown>, status, requestId);
}

/** The error of an ErrorBody, also one with a code that this client does not know. */
export function fromBody(said: Record<string, unknown>, status?: number, requestId?: string): ForkdError {
  const code = String(said["code"]);
  // A proxy in front of the daemon gives no hint.
  const hintCode = code === "unauthorized" ? "needs_token" : text(said["hint_code"]);
  const hint = (hintCode && Object.hasOwn(HINTS, hintCode) ? HINTS[hintCode] : undefined) ?? text(said["hint"]);
  const family = (Object.hasOwn(FAMILIES, code) ? FAMILIES[code] : undefined) ?? ForkdError;
  return new family(String(said["error"]), { code, hint, hintCode, status, requestId });
}

/** The answer is not JSON of the daemon's. */
export function foreign(cause?: unknown): ProtocolError {
  return new ProtocolError("what answers is not forkd's daemon: no JSON", { hint: FOREIGN, cause });
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

/** The usual `instanceof`, for classes that count others as theirs. */
function isInstance(kind: { prototype: object }, value: unknown): boolean {
  return typeof value === "object" && value !== null && Object.prototype.isPrototypeOf.call(kind.prototype, value);
}
