/** Commands and processes of a sandbox, in the foreground and in the background. */

import type { RequestOptions } from "./call.js";
import { CommandHandle, follow } from "./command-handle.js";
import { type Controller, given } from "./controller.js";
import { NotFoundError } from "./errors.js";
import type { ExecStart, Process, Signal, TerminalSize } from "./models.js";
import { limit, PIECE } from "./policy.js";
import * as requests from "./requests.js";
import { args, type Command, type CommandResult, type Handler } from "./results.js";

/** Of every program. */
export interface ProgramOptions extends RequestOptions {
  envs?: Record<string, string> | undefined;
  /** Without it, the image's user. */
  user?: string | undefined;
  cwd?: string | undefined;
}

export interface RunOptions extends ProgramOptions {
  /** Are called with the output as it arrives. */
  onStdout?: Handler<string> | undefined;
  onStderr?: Handler<string> | undefined;
  /** The command's input, or `true` if its handle will send it. */
  stdin?: string | boolean | undefined;
  /** Seconds until it is ended [default: 60]; 0 and `null` are a day. */
  timeout?: number | null | undefined;
  /** With it, the command has a terminal of this size, which merges stdout and stderr. */
  tty?: TerminalSize | undefined;
}

export interface StartOptions extends ProgramOptions {
  /** Whether `sendStdin` writes to its stdin; without it, its stdin is at its end from the start. */
  stdin?: boolean | undefined;
  /** Seconds until it is ended [default: unlimited]. */
  timeout?: number | null | undefined;
}

/** Runs commands in a sandbox. A string is a shell command, for `/bin/sh`; a list is a program and its arguments. */
export class Commands {
  readonly #controller: Controller;
  readonly #id: string;

  constructor(controller: Controller, sandboxId: string) {
    this.#controller = controller;
    this.#id = sandboxId;
  }

  /**
   * Runs a command.
   *
   * In the foreground, resolves when it has ended, and rejects with `CommandExitError` if it failed. With `background`, resolves to a
   * handle as soon as it runs. A command keeps running when its caller goes away, until its time is over.
   */
  run(command: Command, options: RunOptions & { background: true }): Promise<CommandHandle>;
  run(command: Command, options?: RunOptions & { background?: false }): Promise<CommandResult>;
  async run(command: Command, options: RunOptions & { background?: boolean } = {}): Promise<CommandResult | CommandHandle> {
    const { background = false, timeout = 60, tty, stdin } = options;
    const isOpen = background && stdin === true;
    const text = typeof stdin === "string" ? stdin : "";
    const body: ExecStart = {
      args: args(command),
      timeout_secs: limit(timeout),
      ...program(options),
      ...given({ tty }),
    };
    if (!background && !tty) {
      const { transport } = this.#controller;
      const exec = { ...body, timeout_secs: limit(timeout), ...(text ? { stdin: text } : {}) };
      const answer = await transport.stream(requests.execute(this.#id, exec), options);
      return (await follow(transport, answer, options)).checked(limit(timeout));
    }
    if (isOpen || text) body.stdin_window = true;
    const handle = await CommandHandle.start(this.#controller, this.#id, body, isOpen ? undefined : text, options);
    if (background) return handle;
    try {
      return await handle.wait(options);
    } finally {
      handle.disconnect();
    }
  }

  /** Starts a program in the background and returns its process id. `connect` attaches to it. */
  async start(command: Command, options: StartOptions = {}): Promise<number> {
    const { stdin, timeout } = options;
    const body = {
      args: args(command),
      ...program(options),
      ...given({ stdin, timeout_secs: timeout ? limit(timeout) : undefined }),
    };
    return (await this.#controller.transport.send(requests.startProcess(this.#id, body), options)).pid;
  }

  /** Lists the running programs. */
  list(options?: RequestOptions): Promise<Process[]> {
    return this.#controller.transport.send(requests.listProcesses(this.#id), options);
  }

  /** Attaches to a running program. Output from before the call is not repeated. */
  connect(pid: number, options: RequestOptions = {}): Promise<CommandHandle> {
    return CommandHandle.connect(this.#controller, this.#id, pid, options);
  }

  /** Sends a signal to a program and its process group. */
  sendSignal(pid: number, signal: Signal, options?: RequestOptions): Promise<void> {
    return this.#controller.transport.send(requests.signalProcess(this.#id, pid, signal), options);
  }

  /** Writes to the stdin of a program. */
  async sendStdin(pid: number, data: string | Uint8Array, options?: RequestOptions): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    for (let begin = 0; begin < bytes.byteLength; begin += PIECE) {
      const piece = bytes.subarray(begin, begin + PIECE);
      await this.#controller.transport.send(requests.processStdin(this.#id, pid, false), options, piece);
    }
  }

  /** Closes the stdin of a program. */
  closeStdin(pid: number, options?: RequestOptions): Promise<void> {
    return this.#controller.transport.send(requests.processStdin(this.#id, pid, true), options, new Uint8Array());
  }

  /** Kills a program and its process group. Resolves to `false` if no program has this id. */
  async kill(pid: number, options?: RequestOptions): Promise<boolean> {
    try {
      await this.sendSignal(pid, "SIGKILL", options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }
}

/** What the API calls the options of a program. */
export function program(options: ProgramOptions) {
  return given({ cwd: options.cwd, env: options.envs, user: options.user });
}
