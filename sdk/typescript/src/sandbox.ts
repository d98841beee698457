/** Sandboxes. */

import process from "node:process";
import { asNothing, type RequestOptions } from "./call.js";
import { Contexts, type RunCodeOptions, runCode } from "./code.js";
import { follow } from "./command-handle.js";
import { Commands, type ProgramOptions, program } from "./commands.js";
import { Controller, type ControllerOptions, given } from "./controller.js";
import { EvaluationError, EvaluationTimeoutError, InvalidArgumentError, NotFoundError } from "./errors.js";
import { Files } from "./files.js";
import { type ForkOptions, forked } from "./fork.js";
import type { Egress, Exec, Language, SandboxInfo, SandboxStats } from "./models.js";
import { type SandboxFilter, SandboxPaginator } from "./pages.js";
import { limit, seconds } from "./policy.js";
import * as requests from "./requests.js";
import { args, type Command, CommandResult, Execution, type Handler } from "./results.js";
import { Snapshot } from "./snapshot.js";
import type { Content } from "./transport.js";

/** Which daemon to use: a controller, or its address. */
export interface DaemonOptions extends Pick<ControllerOptions, "address" | "token"> {
  controller?: Controller | undefined;
}

export interface CreateOptions extends ForkOptions, DaemonOptions {
  /** E2B's word for a snapshot's tag. */
  template?: string | undefined;
}

export interface ExecOptions extends ProgramOptions {
  /** Seconds until it is ended [default: 30]; 0 and `null` are a day. */
  timeout?: number | null | undefined;
  stdin?: string | undefined;
  /** Are called with the output as it arrives. */
  onStdout?: Handler<string> | undefined;
  onStderr?: Handler<string> | undefined;
  /** Whether a command that fails rejects, with `CommandExitError` or `CommandTimeoutError`. */
  check?: boolean | undefined;
}

/**
 * A sandbox. `await using` removes it at the end of its scope.
 *
 * `info` is the state in the daemon's last answer. `files` and `commands` are as in E2B's client.
 */
export class Sandbox implements AsyncDisposable {
  readonly files: Files;
  readonly commands: Commands;
  readonly contexts: Contexts;

  constructor(
    readonly controller: Controller,
    public info: SandboxInfo,
  ) {
    this.files = new Files(controller, info.id);
    this.commands = new Commands(controller, info.id);
    this.contexts = new Contexts(controller, info.id);
  }

  get id(): string {
    return this.info.id;
  }

  get sandboxId(): string {
    return this.info.id;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }

  /** Forks a sandbox from a snapshot [default: FORKD_TAG, else `base`]. It expires after `timeout` seconds [default: 300]. */
  static create(options?: CreateOptions): Promise<Sandbox>;
  static create(snapshot: string | Snapshot | undefined, options?: CreateOptions): Promise<Sandbox>;
  static async create(first?: string | Snapshot | CreateOptions, second?: CreateOptions): Promise<Sandbox> {
    const isNamed = typeof first === "string" || first instanceof Snapshot;
    const options = second ?? (isNamed ? undefined : first) ?? {};
    const snapshot = (isNamed ? first : undefined) ?? options.template ?? process.env["FORKD_TAG"] ?? "base";
    const own = snapshot instanceof Snapshot ? snapshot.controller : undefined;
    const controller = options.controller ?? own ?? Controller.shared(options);
    const tag = snapshot instanceof Snapshot ? snapshot.tag : snapshot;
    const [info] = await forked(controller, { snapshot_tag: tag }, 1, options);
    return new Sandbox(controller, info as SandboxInfo);
  }

  /** Connects to a sandbox, and resumes it if it is paused. With a `timeout`, it lives at least that many seconds. */
  static async connect(
    sandboxId: string,
    options: RequestOptions & DaemonOptions & { timeout?: number | undefined } = {},
  ): Promise<Sandbox> {
    const controller = options.controller ?? Controller.shared(options);
    const sandbox = new Sandbox(controller, await controller.getSandbox(sandboxId, options));
    if (sandbox.info.state === "paused") await sandbox.resume(options);
    if (options.timeout !== undefined) await sandbox.extendTimeout(options.timeout, options);
    return sandbox;
  }

  /** Lists sandboxes, page by page. Ended ones are listed only if `state` asks for them. */
  static list(options: SandboxFilter & DaemonOptions = {}): SandboxPaginator {
    return new SandboxPaginator(options.controller ?? Controller.shared(options), options);
  }

  /** Requests its current state. */
  async getInfo(options?: RequestOptions): Promise<SandboxInfo> {
    this.info = await this.controller.getSandbox(this.id, options);
    return this.info;
  }

  /** Whether it is running: neither paused nor ended. */
  async isRunning(options?: RequestOptions): Promise<boolean> {
    try {
      return (await this.getInfo(options)).state === "running";
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  /** Runs a command and waits until it ends. A string is a shell command, a list a program and its arguments. */
  async exec(command: Command, options: ExecOptions = {}): Promise<CommandResult> {
    const { timeout = 30, stdin, onStdout, onStderr, check = false } = options;
    const timeoutSecs = limit(timeout);
    const body: Exec = { args: args(command), timeout_secs: timeoutSecs, ...program(options), ...given({ stdin }) };
    const call = requests.execute(this.id, body);
    const { transport } = this.controller;
    const result =
      onStdout || onStderr
        ? await follow(transport, await transport.stream(call, options), options)
        : CommandResult.of(await transport.send(call, options));
    return check ? result.checked(timeoutSecs) : result;
  }

  /**
   * Runs code, and resolves to the value of its last expression as text. Variables are kept between calls. Rejects with
   * `EvaluationError` if the code fails.
   */
  async eval(
    code: string,
    options: RequestOptions & { language?: Language | undefined; timeout?: number | null | undefined } = {},
  ): Promise<string | undefined> {
    const { language = "python", timeout = 30 } = options;
    const timeoutSecs = limit(timeout);
    const evaluated = await this.controller.evalCode(this.id, { code, language, timeout_secs: timeoutSecs }, options);
    const { error } = evaluated;
    if (evaluated.timed_out) throw new EvaluationTimeoutError(timeoutSecs, Execution.of(evaluated));
    if (error) throw new EvaluationError(error.name, error.value, error.traceback);
    return evaluated.result ?? undefined;
  }

  /**
   * Runs code in an interpreter that keeps its state, and resolves to its values, pictures, output and error.
   *
   * Code that exceeds the timeout rejects with `EvaluationTimeoutError`, which has the output until then.
   */
  runCode(code: string, options: RunCodeOptions = {}): Promise<Execution> {
    return runCode(this.controller, this.id, code, options);
  }

  /** Makes a snapshot of it while it keeps running. With `wait`, resolves when the snapshot is on disk. */
  async branch(tag?: string, options: RequestOptions & { wait?: boolean } = {}): Promise<Snapshot> {
    const info = await this.controller.branchSandbox(this.id, tag, { wait: false, ...options });
    return new Snapshot(this.controller, info);
  }

  /** Forks copies of it, all of them or none, while it keeps running. */
  async fork(n = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const children = await forked(this.controller, { from_sandbox: this.id }, n, options);
    return children.map((info) => new Sandbox(this.controller, info));
  }

  /** Pauses it: its CPUs stop, its memory stays. */
  async pause(options?: RequestOptions): Promise<SandboxInfo> {
    this.info = await this.controller.pauseSandbox(this.id, options);
    return this.info;
  }

  /** Resumes it. */
  async resume(options?: RequestOptions): Promise<SandboxInfo> {
    this.info = await this.controller.resumeSandbox(this.id, options);
    return this.info;
  }

  /** Returns it to the state of one of its own branches. Its id and its expiry stay the same. */
  async rollback(branch: string | Snapshot, options?: RequestOptions): Promise<SandboxInfo> {
    const tag = typeof branch === "string" ? branch : branch.tag;
    this.info = await this.controller.rollbackSandbox(this.id, tag, options);
    return this.info;
  }

  /** Removes it. Resolves to `false` if the daemon does not know it; it knows those removed in the last ten minutes. */
  async kill(options?: RequestOptions): Promise<boolean> {
    try {
      await this.controller.killSandbox(this.id, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  /** Changes when it expires: seconds from now, or `null` for never. */
  async setTimeout(timeout: number | null, options?: RequestOptions): Promise<void> {
    this.info = await this.controller.setSandboxTtl(this.id, seconds(timeout), options);
  }

  /** Delays its expiry to at least so many seconds from now. */
  async extendTimeout(timeout: number, options?: RequestOptions): Promise<void> {
    const ends = (await this.getInfo(options)).expires_at_unix;
    if (ends !== undefined && ends !== null && ends < Date.now() / 1000 + timeout) await this.setTimeout(timeout, options);
  }

  /** Changes which addresses it may connect to, also for open connections. */
  async setEgress(egress: Egress, options?: RequestOptions): Promise<void> {
    this.info = await this.controller.setSandboxEgress(this.id, egress, options);
  }

  /** The last bytes of its console output [default: 65536]. */
  logs(size?: number, options?: RequestOptions): Promise<string> {
    return this.controller.sandboxConsole(this.id, size, options);
  }

  /** Its CPU time, memory, disk and network use. */
  stats(options?: RequestOptions): Promise<SandboxStats> {
    return this.controller.sandboxStats(this.id, options);
  }

  /** The URL of one of its ports, for clients with a token of the daemon. A daemon on a Unix socket has no such URL. */
  async proxyUrl(port: number, path = "/", options?: RequestOptions): Promise<string> {
    const address = await this.controller.address(options);
    if (address.socket !== undefined) {
      throw new InvalidArgumentError(`the daemon is at ${address}, which no URL leads to`, {
        hint: "fetch() asks a port over the socket",
      });
    }
    return address.base + requests.proxy(this.id, port, path);
  }

  /** Sends an HTTP request to one of its ports. The answer is the guest's, with any status. */
  async fetch(
    port: number,
    path = "/",
    options: RequestOptions & {
      method?: string;
      body?: Content;
      headers?: Record<string, string>;
      /** Seconds until the answer begins. */
      timeout?: number;
    } = {},
  ): Promise<Response> {
    const { method = "GET", body, headers = {}, timeout, signal } = options;
    const proxied = requests.proxy(this.id, port, path);
    const call = { method, path: proxied, read: asNothing, accept: "*/*", headers, timeout, repeatable: false };
    const answer = await this.controller.transport.exchange(call, { signal }, body);
    answer.watch.release();
    return answer.response;
  }
}
