/** A running command and its output. */

import type { RequestOptions } from "./call.js";
import { LINES, parsedObject } from "./call.js";
import { Changes } from "./changes.js";
import { Channel } from "./channel.js";
import type { Controller } from "./controller.js";
import { ConnectionFailedError, fromBody, ProtocolError, refusal } from "./errors.js";
import { tell } from "./handlers.js";
import type { ExecStart, Signal } from "./models.js";
import { LARGEST_ERROR, LONG } from "./policy.js";
import * as requests from "./requests.js";
import { CommandResult, type Handler, Text } from "./results.js";
import type { Answer, Transport } from "./transport.js";

/** What a client may send at once. */
const LARGEST_INPUT = 256 << 10;
/** What a client may send before the program has taken any of it. The daemon listens for signals meanwhile. */
const WINDOW = 1 << 20;
/** The first byte of output on stderr. */
const STDERR = 2;

export interface OutputHandlers {
  onStdout?: Handler<string> | undefined;
  onStderr?: Handler<string> | undefined;
}

/** A piece of output. */
export type Output = { stdout: string; stderr?: never } | { stderr: string; stdout?: never };

/**
 * A running command. Its output is read while its handle is waited for or iterated over. Output that is not read is kept, up to
 * 64 MiB; with more, the connection ends.
 */
export class CommandHandle implements AsyncDisposable {
  readonly #channel: Channel;
  readonly #limit: number;
  readonly #stdout = new Text();
  readonly #stderr = new Text();
  readonly #handlers: OutputHandlers;
  #pid = 0;
  #result: CommandResult | undefined;
  /** Bytes that were sent and that the program has not taken; `undefined` if the daemon does not report it. */
  #unread: number | undefined;
  #isOver = false;
  readonly #changes = new Changes();

  private constructor(channel: Channel, limit: number, handlers: OutputHandlers, hasWindow: boolean) {
    this.#channel = channel;
    this.#limit = limit;
    this.#handlers = { ...handlers };
    this.#unread = hasWindow ? 0 : undefined;
    channel.onText = (text) => this.#heard(text);
    channel.onEnd = () => this.#finished();
  }

  /** @internal Starts a program. Without `stdin`, the handle's caller sends its stdin and closes it. */
  static async start(
    controller: Controller,
    sandboxId: string,
    body: ExecStart,
    stdin: string | undefined,
    options: RequestOptions & OutputHandlers,
  ): Promise<CommandHandle> {
    const channel = await open(controller, sandboxId, requests.interact(sandboxId), options);
    const handle = new CommandHandle(channel, body.timeout_secs ?? 0, options, body.stdin_window ?? false);
    channel.send(JSON.stringify(body));
    // A program that takes none of it may end all the same.
    if (stdin !== undefined) handle.#feed(stdin).catch(() => undefined);
    await handle.#begun(options.signal);
    return handle;
  }

  /** @internal Follows a program that runs. */
  static async connect(
    controller: Controller,
    sandboxId: string,
    pid: number,
    options: RequestOptions & OutputHandlers,
  ): Promise<CommandHandle> {
    const channel = await open(controller, sandboxId, requests.connectProcess(sandboxId, pid), options);
    const handle = new CommandHandle(channel, 0, options, true);
    handle.#pid = pid;
    return handle;
  }

  /** Its process id. */
  get pid(): number {
    return this.#pid;
  }

  /** Its stdout so far, as far as it was read. */
  get stdout(): string {
    return String(this.#stdout);
  }

  get stderr(): string {
    return String(this.#stderr);
  }

  /** `undefined` until it is known to have ended. */
  get exitCode(): number | undefined {
    return this.#result?.exitCode;
  }

  /** Waits until it ends. Rejects with `CommandExitError` if it failed, `CommandTimeoutError` if it exceeded its timeout. */
  async wait(options: RequestOptions & OutputHandlers = {}): Promise<CommandResult> {
    return (await this.ended(options)).checked(this.#limit);
  }

  /** Waits until it ends, with any exit code. */
  async ended(options: RequestOptions & OutputHandlers = {}): Promise<CommandResult> {
    options.signal?.throwIfAborted();
    this.#handlers.onStdout = options.onStdout ?? this.#handlers.onStdout;
    this.#handlers.onStderr = options.onStderr ?? this.#handlers.onStderr;
    while (!this.#result) await this.#read(options.signal);
    return this.#result;
  }

  /** Its output as it arrives. */
  [Symbol.asyncIterator](): AsyncGenerator<Output, void, undefined> {
    return this.output();
  }

  /** Its output as it arrives, until `signal` aborts. The command keeps running then, and can still be followed. */
  async *output(options: RequestOptions = {}): AsyncGenerator<Output, void, undefined> {
    options.signal?.throwIfAborted();
    while (!this.#result) yield* await this.#read(options.signal);
  }

  /** Writes to its stdin. Waits while the command has more than 1 MiB to read; signals are sent meanwhile. */
  async sendStdin(data: string | Uint8Array, options: RequestOptions = {}): Promise<void> {
    options.signal?.throwIfAborted();
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    for (let begin = 0; begin < bytes.byteLength; begin += LARGEST_INPUT) {
      const piece = bytes.subarray(begin, begin + LARGEST_INPUT);
      while (!this.#reserve(piece.byteLength)) await this.#changes.next(options.signal);
      this.#channel.send(piece);
    }
  }

  /** Closes its stdin. */
  async closeStdin(options: RequestOptions = {}): Promise<void> {
    this.#say("close_stdin", options);
  }

  /** Changes the size of its terminal. */
  async resize(cols: number, rows: number, options: RequestOptions = {}): Promise<void> {
    this.#say({ resize: { cols, rows } }, options);
  }

  /** Sends a signal to it and its process group. */
  async sendSignal(signal: Signal, options: RequestOptions = {}): Promise<void> {
    this.#say({ signal }, options);
  }

  /** Kills it. Resolves to `false` if it had ended. */
  async kill(options: RequestOptions = {}): Promise<boolean> {
    options.signal?.throwIfAborted();
    if (this.#result) return false;
    await this.sendSignal("SIGKILL", options);
    return true;
  }

  /** Stops following it. It keeps running until its timeout. */
  disconnect(): void {
    this.#channel.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.disconnect();
  }

  async #begun(signal: AbortSignal | undefined): Promise<void> {
    try {
      const event = await this.#next(signal);
      if (event instanceof Uint8Array || !isObject(event["started"])) {
        throw new ProtocolError("the daemon did not say that the program runs");
      }
      this.#pid = Number(event["started"]["pid"]);
    } catch (error) {
      this.disconnect();
      throw error;
    }
  }

  /** Sends its whole stdin. It is not in the first message, which has a largest size as all have. */
  async #feed(stdin: string): Promise<void> {
    await this.sendStdin(stdin);
    await this.closeStdin();
  }

  #say(message: unknown, options: RequestOptions): void {
    options.signal?.throwIfAborted();
    this.#channel.send(JSON.stringify(message));
  }

  /** Output of the next message, with the handlers told. */
  async #read(signal?: AbortSignal): Promise<Output[]> {
    const event = await this.#next(signal);
    if (event instanceof Uint8Array) {
      const isStderr = event[0] === STDERR;
      return this.#told(isStderr, (isStderr ? this.#stderr : this.#stdout).add(event.subarray(1)));
    }
    const exited = event["exited"];
    if (!isObject(exited)) return [];
    const rest = [...(await this.#told(false, this.#stdout.end())), ...(await this.#told(true, this.#stderr.end()))];
    this.#result = new CommandResult(this.stdout, this.stderr, Number(exited["exit_code"]), exited["timed_out"] === true);
    this.#channel.close();
    return rest;
  }

  async #told(isStderr: boolean, text: string): Promise<Output[]> {
    if (!text) return [];
    await tell(isStderr ? this.#handlers.onStderr : this.#handlers.onStdout, text);
    return [isStderr ? { stderr: text } : { stdout: text }];
  }

  /** The daemon's next message: an event, or output. */
  async #next(signal?: AbortSignal): Promise<Record<string, unknown> | Uint8Array> {
    const message = await this.#channel.receive(signal);
    if (message === undefined) {
      if (this.#result) return {};
      throw this.#channel.reason ?? new ConnectionFailedError("the daemon ended the connection before the program's end");
    }
    if (message instanceof Uint8Array) return message;
    const event = parsedObject(message);
    if (isObject(event["error"])) {
      this.#channel.close();
      throw fromBody(event["error"]);
    }
    return event;
  }

  /** Looks at a text message as it comes. Returns whether it is done with. */
  #heard(text: string): boolean {
    let event: Record<string, unknown>;
    try {
      event = parsedObject(text);
    } catch {
      return false;
    }
    const taken = event["stdin_taken"];
    if (isObject(taken)) {
      this.#unread = Math.max(0, (this.#unread ?? 0) - Number(taken["bytes"]));
      this.#changes.wake();
      return true;
    }
    if (event["exited"] || event["error"]) this.#finished();
    return false;
  }

  #finished(): void {
    this.#isOver = true;
    this.#changes.wake();
  }

  /** Whether so much may be sent now; it then counts as sent. */
  #reserve(size: number): boolean {
    if (this.#unread !== undefined && !this.#isOver) {
      if (this.#unread + size > WINDOW) return false;
      this.#unread += size;
    }
    return true;
  }
}

/** A program whose output comes in lines, to its end. */
export async function follow(transport: Transport, answer: Answer, handlers: OutputHandlers): Promise<CommandResult> {
  const streams = [
    { name: "stdout", text: new Text(), handler: handlers.onStdout },
    { name: "stderr", text: new Text(), handler: handlers.onStderr },
  ] as const;
  for await (const event of transport.lines(answer)) {
    if (isObject(event["error"])) throw fromBody(event["error"], undefined, answer.requestId);
    const exited = event["exited"];
    for (const { name, text, handler } of streams) {
      const said = event[name];
      const part = said === undefined ? (exited ? text.end() : "") : text.add(decoded(said));
      if (part) await tell(handler, part);
    }
    if (isObject(exited)) {
      const [stdout, stderr] = streams.map(({ text }) => String(text));
      return new CommandResult(stdout ?? "", stderr ?? "", Number(exited["exit_code"]), exited["timed_out"] === true);
    }
  }
  throw new ConnectionFailedError("the daemon ended the connection before the program's end");
}

/** A WebSocket that is open. A refusal has no reason in a WebSocket, so the same is asked over HTTP. */
async function open(controller: Controller, sandboxId: string, path: string, options: RequestOptions): Promise<Channel> {
  const { transport } = controller;
  const channel = new Channel(await transport.websocket(path, options));
  try {
    await channel.opened(options.signal);
    return channel;
  } catch (error) {
    if (!(error instanceof ConnectionFailedError)) throw error;
    const asked = { method: "GET", path, read: () => undefined, accept: LINES, headers: {}, timeout: LONG, repeatable: false };
    const answer = await transport.exchange(asked, options);
    const { status } = answer.response;
    if (status < 400) {
      // A program that runs is told without end.
      answer.watch.stop();
      await answer.response.body?.cancel();
      throw error;
    }
    const said = new TextDecoder().decode(await transport.body(answer, LARGEST_ERROR));
    // That the request is not for a WebSocket is no reason.
    if (status !== 400) throw refusal(status, said, answer.requestId);
    const { state } = await controller.getSandbox(sandboxId, options);
    if (state !== "running") {
      throw fromBody({ error: `the sandbox is ${state}`, code: "wrong_state" }, 409, answer.requestId);
    }
    throw error;
  }
}

function decoded(text: unknown): Uint8Array {
  if (typeof text !== "string" || !/^[A-Za-z0-9+/]*={0,2}$/.test(text) || text.length % 4 !== 0) {
    throw new ProtocolError("the output in the daemon's answer is not base64");
  }
  return Buffer.from(text, "base64");
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
