/** The messages of a WebSocket, one after another. */

import { Changes } from "./changes.js";
import { ConnectionFailedError, type ForkdError } from "./errors.js";
import { CONNECT } from "./policy.js";
import type { Socket } from "./runtime.js";

/** The most that is kept for a caller that does not read. A browser-style WebSocket cannot be told to wait. */
const KEPT = 64 << 20;

export class Channel {
  /** Sees each text as it comes; `true` if it is done with. */
  onText: (text: string) => boolean = () => false;
  onEnd: () => void = () => undefined;
  /** Why this side has ended the connection, if it has. */
  reason: ForkdError | undefined;

  readonly #socket: Socket;
  readonly #opened: Promise<void>;
  #messages: (string | Uint8Array)[] = [];
  #size = 0;
  #isClosed = false;
  readonly #changes = new Changes();

  constructor(socket: Socket) {
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    this.#opened = new Promise((resolve, reject) => {
      const refuse = (why?: string) =>
        reject(new ConnectionFailedError(`the daemon did not open a WebSocket${why ? `: ${why}` : ""}`));
      socket.addEventListener("open", () => resolve());
      socket.addEventListener("error", (event) => {
        refuse(event.message);
        this.#end();
      });
      socket.addEventListener("close", () => {
        refuse();
        this.#end();
      });
    });
    this.#opened.catch(() => undefined);
    socket.addEventListener("message", (event) => this.#arrived(event.data));
  }

  /** Waits until it is open. */
  async opened(signal?: AbortSignal): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    let abort: (() => void) | undefined;
    const ended = new Promise<never>((_, reject) => {
      const late = new ConnectionFailedError(`the daemon did not open a WebSocket within ${CONNECT} s`);
      timer = setTimeout(() => reject(late), CONNECT * 1000);
      abort = () => reject(signal?.reason);
      signal?.addEventListener("abort", abort, { once: true });
    });
    try {
      signal?.throwIfAborted();
      await Promise.race([this.#opened, ended]);
    } catch (error) {
      this.close();
      throw error;
    } finally {
      clearTimeout(timer);
      if (abort) signal?.removeEventListener("abort", abort);
    }
  }

  send(message: string | Uint8Array): void {
    if (this.#isClosed) throw this.reason ?? new ConnectionFailedError("the connection to the program is over");
    this.#socket.send(message);
  }

  /** The next message; `undefined` at the end. */
  async receive(signal?: AbortSignal): Promise<string | Uint8Array | undefined> {
    signal?.throwIfAborted();
    while (this.#messages.length === 0) {
      if (this.#isClosed) return undefined;
      await this.#changes.next(signal);
    }
    const message = this.#messages.shift();
    this.#size -= message?.length ?? 0;
    return message;
  }

  /** What was received and not read can still be read. */
  close(): void {
    this.#end();
    this.#socket.close();
  }

  #arrived(data: unknown): void {
    const message = typeof data === "string" ? data : new Uint8Array(data as ArrayBuffer);
    if (typeof message === "string" && this.onText(message)) return;
    this.#size += message.length;
    if (this.#size > KEPT) {
      this.reason = new ConnectionFailedError(`more than ${KEPT >> 20} MiB of output were not read`, {
        hint: "wait() or for await reads it",
      });
      this.close();
      return;
    }
    this.#messages.push(message);
    this.#changes.wake();
  }

  #end(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.onEnd();
    this.#changes.wake();
  }
}
