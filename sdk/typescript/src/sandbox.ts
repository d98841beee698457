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

/** Which daemon is asked: a controller, or where it is. */
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
  /** Are told the output as it comes. */
  onStdout?: Handler<string> | undefined;
  onStderr?: Handler<string> | undefined;
  /** Whether a command that fails rejects, with `CommandExitError` or `CommandTimeoutError`. */
  check?: boolean | undefined;
}

/**
 * A sandbox. `await using` removes it at the end of its scope.
 *
 * `info` is what was known of it when it was last asked. `files` and `commands` are as in E2B's client.
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

  /** A new sandbox of a snapshot: FORKD_TAG, or `base`, if none is named. It expires after `timeout` seconds [default: 300]. */
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

  /** A sandbox that exists. A paused one continues; with a `timeout`, it has at least so many seconds from now. */
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

  /** The sandboxes that there are, page by page; those that ended only if they are asked for. */
  static list(options: SandboxFilter & DaemonOptions = {}): SandboxPaginator {
    return new SandboxPaginator(options.controller ?? Controller.shared(options), options);
  }

  /** What is known of it now. */
  async getInfo(options?: RequestOptions): Promise<SandboxInfo> {
    this.info = await this.controller.getSandbox(this.id, options);
    return this.info;
  }

  /** Whether it runs: it is neither paused nor gone. */
  async isRunning(options?: RequestOptions): Promise<boolean> {
    try {
      return (await this.getInfo(options)).state === "running";
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  /** Runs a command to its end. A text is one of the shell, a list a program and its arguments. */
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

  /** The value of the last expression, as text. Names stay from call to call. Code that fails rejects with `EvaluationError`. */
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
   * Runs code in an interpreter that keeps its state, and returns all that came of it: values, pictures, output, an error.
   *
   * Code whose time is over rejects with `EvaluationTimeoutError`, which has all output until then.
   */
  runCode(code: string, options: RunCodeOptions = {}): Promise<Execution> {
    return runCode(this.controller, this.id, code, options);
  }

  /** A snapshot of it as it is now; it keeps running. With `wait`, the snapshot is on disk when this resolves. */
  async branch(tag?: string, options: RequestOptions & { wait?: boolean } = {}): Promise<Snapshot> {
    const info = await this.controller.branchSandbox(this.id, tag, { wait: false, ...options });
    return new Snapshot(this.controller, info);
  }

  /** Copies of it as it is now, all of them or none; it keeps running. */
  async fork(n = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const children = await forked(this.controller, { from_sandbox: this.id }, n, options);
    return children.map((info) => new Sandbox(this.controller, info));
  }

  /** Stops it where it is. */
  async pause(options?: RequestOptions): Promise<SandboxInfo> {
    this.info = await this.controller.pauseSandbox(this.id, options);
    return this.info;
  }

  /** Lets it continue. */
  async resume(options?: RequestOptions): Promise<SandboxInfo> {
    this.info = await this.controller.resumeSandbox(this.id, options);
    return this.info;
  }

  /** Takes it back to one of its own branches. It keeps its id and its time. */
  async rollback(branch: string | Snapshot, options?: RequestOptions): Promise<SandboxInfo> {
    const tag = typeof branch === "string" ? branch : branch.tag;
    this.info = await this.controller.rollbackSandbox(this.id, tag, options);
    return this.info;
  }

  /** Removes it. `false` if the daemon does not know it; one that was removed minutes ago is still known. */
  async kill(options?: RequestOptions): Promise<boolean> {
    try {
      await this.controller.killSandbox(this.id, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  /** It expires so many seconds from now; with `null`, never. */
  async setTimeout(timeout: number | null, options?: RequestOptions): Promise<void> {
    this.info = await this.controller.setSandboxTtl(this.id, seconds(timeout), options);
  }

  /** It has at least so many seconds from now. */
  async extendTimeout(timeout: number, options?: RequestOptions): Promise<void> {
    const ends = (await this.getInfo(options)).expires_at_unix;
    if (ends !== undefined && ends !== null && ends < Date.now() / 1000 + timeout) await this.setTimeout(timeout, options);
  }

  /** Changes what it may reach, from one packet to the next. */
  async setEgress(egress: Egress, options?: RequestOptions): Promise<void> {
    this.info = await this.controller.setSandboxEgress(this.id, egress, options);
  }

  /** The last of what its guest printed on its console: so many bytes, or 65536. */
  logs(size?: number, options?: RequestOptions): Promise<string> {
    return this.controller.sandboxConsole(this.id, size, options);
  }

  /** What it uses. */
  stats(options?: RequestOptions): Promise<SandboxStats> {
    return this.controller.sandboxStats(this.id, options);
  }

  /** Where one of its ports is, for programs that show the daemon a token. A daemon behind a socket has no such address. */
  async proxyUrl(port: number, path = "/"): Promise<string> {
    const address = await this.controller.address();
    if (address.socket !== undefined) {
      throw new InvalidArgumentError(`the daemon is at ${address}, which no URL leads to`, {
        hint: "fetch() asks a port over the socket",
      });
    }
    return address.base + requests.proxy(this.id, port, path);
  }

  /** Asks what listens on one of its ports, over HTTP. The answer is the guest's own, with any status. */
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
