/**
 * Sandboxes that fork like processes.
 *
 * ```ts
 * import { Sandbox } from "forkd";
 *
 * await using sandbox = await Sandbox.create("python");
 * await sandbox.eval("x = 20");
 * const children = await sandbox.fork(3);
 * console.log(await Promise.all(children.map((child, number) => child.eval(`x + ${number}`))));
 * ```
 *
 * `Sandbox` and `Snapshot` are what most programs need, `Controller` has every request of the API, and `models` its types.
 */

export { Address } from "./address.js";
export type { RequestOptions } from "./call.js";
export { Contexts, type RunCodeOptions } from "./code.js";
export { CommandHandle, type Output, type OutputHandlers } from "./command-handle.js";
export { Commands, type ProgramOptions, type RunOptions, type StartOptions } from "./commands.js";
export {
  Controller,
  type ControllerOptions,
  type EventOptions,
  type ListSandboxes,
  type ProgressOptions,
  type PullSnapshotOptions,
  type PushSnapshotOptions,
} from "./controller.js";
export * from "./errors.js";
export { type FileOptions, Files, type ListFilesOptions } from "./files.js";
export type { ForkOptions } from "./fork.js";
export type * as models from "./models.js";
export type {
  CodeContext,
  Egress,
  Event,
  FileInfo,
  Limits,
  Process,
  ReadyProbe,
  SandboxInfo,
  SnapshotInfo,
  WarmUp,
} from "./models.js";
export { type SandboxFilter, SandboxPaginator } from "./pages.js";
export { type Command, CommandResult, Execution, type Handler, type Logs, Result } from "./results.js";
export type { Fetch, Verify } from "./runtime.js";
export { type CreateOptions, type DaemonOptions, type ExecOptions, Sandbox } from "./sandbox.js";
export {
  type BuildSnapshotOptions,
  type CreateSnapshotOptions,
  type Preparation,
  Snapshot,
  type SnapshotContents,
} from "./snapshot.js";
export type { Content } from "./transport.js";
export { VERSION } from "./version.js";
