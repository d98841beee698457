/** Requests and their answers, over HTTP. docs/clients.md says what is repeated, and how long things may take. */

import { setTimeout as sleep } from "node:timers/promises";
import { type Address, type Found, find, named } from "./address.js";
import type { Helper } from "./autostart.js";
import { type Call, LINES, parsedObject, type RequestOptions } from "./call.js";
import { ConnectionFailedError, type ForkdError, ProtocolError, RequestTimeoutError, refusal } from "./errors.js";
import { LARGEST, LARGEST_ERROR, LONGEST_LINE, mayPass, PIECE, pause } from "./policy.js";
import { type Connector, connector, type Fetch, type Socket, type Verify } from "./runtime.js";
import { VERSION } from "./version.js";

export interface TransportOptions {
  address: string | undefined;
  token: string | undefined;
  timeout: number;
  retries: number;
  verify: Verify;
  fetch: Fetch | undefined;
  /** Finds the daemon, or starts one. */
  helper: Helper | undefined;
}

/** What can be sent: text, bytes, a stream, or pieces as they come. */
export type Content =
  string | Uint8Array | ArrayBuffer | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> | Iterable<Uint8Array>;

/** An answer of which nothing is read yet. */
export interface Answer {
  response: Response;
  requestId: string | undefined;
  address: Address;
  watch: Watch;
}

interface Daemon extends Found {
  connector: Connector;
}

/** Connections to one daemon, which is looked for at the first request. */
export class Transport {
  readonly #options: TransportOptions;
  #daemon: Promise<Daemon> | undefined;
  /** What `#daemon` has found. */
  #known: Daemon | undefined;
  /** Connections for no new requests, and with some in flight. */
  readonly #retired = new Set<Connector>();
  /** Of the requests in flight. */
  readonly #watches = new Set<Watch>();
  #hasWarned = false;

  constructor(options: TransportOptions) {
    this.#options = options;
    // An invalid address is refused at once.
    named(options.address);
  }

  /** Where the daemon is. */
  async address(options: RequestOptions = {}): Promise<Address> {
    return (await unlessAborted(this.#found(), options.signal)).address;
  }

  /** What is answered. A request that may be repeated is, if the daemon cannot be reached or says that this will pass. */
  async send<T>(call: Call<T>, options: RequestOptions = {}, content?: Content): Promise<T> {
    return this.#repeated(call.repeatable && content === undefined, options, async () => {
      const answer = await this.openOnce(call, options, content);
      return call.read(await this.body(answer, LARGEST));
    });
  }

  /** An answer with a status below 300, of which nothing is read yet. It is repeated until the answer begins. */
  async open(call: Call<unknown>, options: RequestOptions = {}, content?: Content): Promise<Answer> {
    return this.#repeated(call.repeatable && content === undefined, options, () => this.openOnce(call, options, content));
  }

  /** An answer with any status, of which nothing is read yet. */
  async exchange(call: Call<unknown>, options: RequestOptions = {}, content?: Content): Promise<Answer> {
    const daemon = await unlessAborted(this.#found(), options.signal);
    const watch = new Watch(call.timeout ?? this.#options.timeout, this.#watches, options.signal);
    try {
      const init: RequestInit & { duplex?: "half" } = {
        method: call.method,
        headers: { ...this.#headers(daemon), accept: call.accept, ...call.headers },
        signal: watch.signal,
        redirect: "manual",
      };
      const body = content === undefined ? call.body : await sent(content, watch);
      if (body !== undefined) init.body = body;
      if (body instanceof ReadableStream) init.duplex = "half";
      const response = await daemon.connector.fetch(daemon.address.base + call.path, init);
      watch.pause();
      const requestId = response.headers.get("x-request-id") ?? undefined;
      return { response, requestId, address: daemon.address, watch };
    } catch (cause) {
      watch.stop();
      throw watch.failure(cause, daemon.address, () => this.#forget(daemon), false);
    }
  }

  /** The whole body of an answer, if it is not too large. */
  async body(answer: Answer, most: number): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    let size = 0;
    for await (const piece of this.pieces(answer)) {
      size += piece.byteLength;
      if (size > most) throw new ProtocolError("the daemon's answer is too large");
      pieces.push(piece);
    }
    const whole = new Uint8Array(size);
    let at = 0;
    for (const piece of pieces) {
      whole.set(piece, at);
      at += piece.byteLength;
    }
    return whole;
  }

  /** The body of an answer as it arrives. A caller that stops reading ends the connection. */
  pieces(answer: Answer): AsyncGenerator<Uint8Array, void, undefined> {
    const { response, address, watch } = answer;
    const reader = response.body?.getReader();
    const end = async () => {
      watch.stop();
      await reader?.cancel().catch(() => undefined);
    };
    const pieces = read(reader, address, watch, end);
    // A generator that was never read from does nothing at its end, and one that waits for a piece ends after it.
    const finish = pieces.return.bind(pieces);
    pieces.return = async (value) => {
      await end();
      return finish(value);
    };
    return pieces;
  }

  /** The lines of an answer as they come, each an object of JSON. */
  async *lines(answer: Answer): AsyncGenerator<Record<string, unknown>, void, undefined> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const piece of this.pieces(answer)) {
      // A line that comes in many pieces is searched once.
      let from = rest.length;
      rest += decoder.decode(piece, { stream: true });
      let begin = 0;
      for (let end = rest.indexOf("\n", from); end >= 0; end = rest.indexOf("\n", from)) {
        yield parsedObject(rest.slice(begin, end));
        begin = from = end + 1;
      }
      rest = rest.slice(begin);
      if (rest.length > LONGEST_LINE) throw new ProtocolError("a line of the daemon's answer is too long");
    }
    rest += decoder.decode();
    if (rest) yield parsedObject(rest);
  }

  /** An answer in lines. It is not repeated: what makes something and tells how far it is would begin again. */
  async stream(call: Call<unknown>, options: RequestOptions = {}, content?: Content): Promise<Answer> {
    return this.openOnce({ ...call, accept: LINES }, options, content);
  }

  /** Whether a request is repeated that may be, and that has failed so often. */
  again(attempts: number, error: unknown): boolean {
    return attempts <= this.#options.retries && mayPass(error);
  }

  /** A WebSocket at a path of the API, which is not open yet. */
  async websocket(path: string, options: RequestOptions): Promise<Socket> {
    const daemon = await unlessAborted(this.#found(), options.signal);
    return daemon.connector.websocket(path, this.#headers(daemon));
  }

  /** Ends all connections. The next request makes new ones. */
  async close(): Promise<void> {
    const daemon = this.#daemon;
    this.#daemon = this.#known = undefined;
    // Not every runtime ends requests with their connections.
    for (const watch of this.#watches) watch.close();
    const found = await daemon?.catch(() => undefined);
    const connectors = [...this.#retired, ...(found ? [found.connector] : [])];
    await Promise.all(connectors.map((connector) => connector.close()));
  }

  /** An answer with a status below 300, of which nothing is read yet. The request is sent once. */
  async openOnce(call: Call<unknown>, options: RequestOptions = {}, content?: Content): Promise<Answer> {
    const answer = await this.exchange(call, options, content);
    const { response, requestId } = answer;
    if (response.status < 300) return answer;
    const said = new TextDecoder().decode(await this.body(answer, LARGEST_ERROR));
    throw refusal(response.status, said, requestId);
  }

  async #repeated<T>(isRepeatable: boolean, options: RequestOptions, attempt: () => Promise<T>): Promise<T> {
    for (let attempts = 1; ; attempts++) {
      try {
        return await attempt();
      } catch (error) {
        if (!isRepeatable || !this.again(attempts, error)) throw error;
      }
      await rest(pause(attempts), options.signal);
    }
  }

  async #found(): Promise<Daemon> {
    const { helper } = this.#options;
    if (helper) {
      // A daemon that has ended with the process that held it is started again.
      const found = await helper.find();
      if (this.#known && String(this.#known.address) !== String(found.address)) this.#retire(this.#known);
    }
    if (!this.#daemon) {
      const looking = this.#look();
      this.#daemon = looking;
      looking.then(
        (daemon) => {
          if (this.#daemon === looking) this.#known = daemon;
        },
        () => {
          // What was not found is looked for again.
          if (this.#daemon === looking) this.#daemon = undefined;
        },
      );
    }
    return this.#daemon;
  }

  async #look(): Promise<Daemon> {
    const { address, token, verify, fetch, helper } = this.#options;
    const found = await (helper ? helper.find() : find(address, token));
    if (found.token && !found.address.isLocal && found.address.base.startsWith("http:") && !this.#hasWarned) {
      this.#hasWarned = true;
      console.warn(`forkd: the token goes to ${found.address} unencrypted`);
    }
    return { ...found, connector: await connector(found.address, { verify, fetch }) };
  }

  /** A daemon that no name led to, and that is gone, is looked for again: another may have come up. */
  #forget(daemon: Daemon): void {
    this.#options.helper?.lost();
    if (!named(this.#options.address) && this.#known === daemon) this.#retire(daemon);
  }

  /** New requests look for a daemon again. Those in flight may still end well. */
  #retire({ connector }: Daemon): void {
    this.#daemon = this.#known = undefined;
    this.#retired.add(connector);
    const done = () => this.#retired.delete(connector);
    connector.retire().then(done, done);
  }

  #headers(daemon: Daemon): Record<string, string> {
    const always = { "user-agent": `forkd-typescript/${VERSION}`, "accept-encoding": "identity" };
    return daemon.token ? { ...always, authorization: `Bearer ${daemon.token}` } : always;
  }
}

/** Ends a request when nothing happens for a time, or when its caller wants it to end. */
export class Watch {
  readonly #controller = new AbortController();
  readonly #seconds: number;
  readonly #all: Set<Watch>;
  readonly #outer: AbortSignal | undefined;
  readonly #abort = () => this.#controller.abort(this.#outer?.reason);
  #timer: NodeJS.Timeout | undefined;
  #isOver = false;
  #isReleased = false;

  /** It is in `all` as long as its request is in flight. */
  constructor(seconds: number, all: Set<Watch>, outer?: AbortSignal) {
    outer?.throwIfAborted();
    this.#seconds = seconds;
    this.#all = all.add(this);
    this.#outer = outer;
    outer?.addEventListener("abort", this.#abort, { once: true });
    this.restart();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Something has happened, and the next thing is waited for. */
  restart(): void {
    clearTimeout(this.#timer);
    // What is sent may still come when the answer is there.
    if (this.#isReleased) return;
    // A timer of more than 2^31 ms would be over at once.
    if (this.#seconds * 1000 < 2 ** 31) {
      this.#timer = setTimeout(() => {
        this.#isOver = true;
        this.#controller.abort();
      }, this.#seconds * 1000);
    }
  }

  /** Nothing is waited for: its caller may take any time, and can still end it. */
  pause(): void {
    clearTimeout(this.#timer);
  }

  /** The same for good. */
  release(): void {
    this.#isReleased = true;
    this.#all.delete(this);
    this.pause();
  }

  /** Its client is closed. */
  close(): void {
    this.#controller.abort(new Error("the client was closed"));
  }

  /** The request has ended. */
  stop(): void {
    this.release();
    this.#outer?.removeEventListener("abort", this.#abort);
  }

  /** What an error of `fetch` means to the caller. */
  failure(cause: unknown, address: Address, onUnreachable: () => void, hasBegun: boolean): unknown {
    if (this.#outer?.aborted) return this.#outer.reason;
    if (this.#isOver) {
      const hint = "forkd ping says whether it answers at all";
      return new RequestTimeoutError("the daemon did not answer in time", { hint, cause });
    }
    const error = connectionFailure(cause, address, hasBegun);
    if (!hasBegun && error instanceof ConnectionFailedError) onUnreachable();
    return error;
  }
}

const OTHER = "FORKD_ADDRESS or the option address names another";
const RUNNING = `is it running? forkd serve starts one; ${OTHER}`;

function connectionFailure(cause: unknown, address: Address, hasBegun: boolean): ForkdError {
  const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause;
  const given = (inner as { code?: unknown } | undefined)?.code;
  const code = typeof given === "string" ? given : "";
  const reason = inner instanceof Error ? inner.message || code : String(inner);
  if (code.startsWith("HPE_")) {
    return new ProtocolError(`what answers at ${address} is not forkd's daemon: ${reason}`, { hint: OTHER, cause });
  }
  if (/CERT|SELF_SIGNED|VERIFY/.test(code) || /certificate|UnknownIssuer/i.test(reason)) {
    return new ConnectionFailedError(`the daemon at ${address} has no certificate that this host trusts`, {
      hint: "SSL_CERT_FILE or the option verify names a file of certificates to trust, in PEM",
      cause,
    });
  }
  if (hasBegun || /SOCKET|ECONNRESET|EPIPE|ConnectionClosed/.test(code)) {
    const hint = "its log may have the reason";
    return new ConnectionFailedError(`the connection to the daemon broke: ${reason}`, { hint, cause });
  }
  return new ConnectionFailedError(`the daemon at ${address} cannot be reached: ${reason}`, { hint: RUNNING, cause });
}

/** Waits before another attempt. */
export async function rest(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(milliseconds, undefined, signal ? { signal } : {});
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  }
}

/** A body piece by piece. Its time runs only while a piece is waited for. */
async function* read(
  reader: ReadableStreamDefaultReader<Uint8Array> | undefined,
  address: Address,
  watch: Watch,
  end: () => Promise<void>,
): AsyncGenerator<Uint8Array, void, undefined> {
  try {
    while (reader) {
      watch.restart();
      const { done, value } = (await reader.read()) as { done: boolean; value: Uint8Array };
      watch.pause();
      if (done) return;
      yield value;
    }
  } catch (cause) {
    throw watch.failure(cause, address, () => undefined, true);
  } finally {
    await end();
  }
}

/** Waits for work that continues for other callers when this one aborts. */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return work;
  let stop: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    if (stop) signal.removeEventListener("abort", stop);
    work.catch(() => undefined);
  }
}

/** A body: what is small as it is, everything else in pieces, each of which shows that the request is alive. */
async function sent(content: Content, watch: Watch): Promise<Uint8Array<ArrayBuffer> | ReadableStream<Uint8Array>> {
  if (typeof content === "string") return sent(new TextEncoder().encode(content), watch);
  if (content instanceof ArrayBuffer) return sent(new Uint8Array(content), watch);
  if (content instanceof Blob) return sent(content.stream() as ReadableStream<Uint8Array>, watch);
  if (content instanceof Uint8Array) {
    return content.byteLength <= PIECE ? new Uint8Array(content) : streamed(slices(content), watch);
  }
  return streamed(content, watch);
}

function* slices(content: Uint8Array): Generator<Uint8Array> {
  for (let begin = 0; begin < content.byteLength; begin += PIECE) yield content.subarray(begin, begin + PIECE);
}

function streamed(
  content: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  watch: Watch,
): ReadableStream<Uint8Array> {
  const pieces = Symbol.asyncIterator in content ? content[Symbol.asyncIterator]() : content[Symbol.iterator]();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        const { done, value } = (await pieces.next()) as IteratorResult<Uint8Array | string, undefined>;
        watch.restart();
        if (done) controller.close();
        else controller.enqueue(typeof value === "string" ? new TextEncoder().encode(value) : value);
      },
      async cancel() {
        await pieces.return?.();
      },
    },
    { highWaterMark: 0 },
  );
}
