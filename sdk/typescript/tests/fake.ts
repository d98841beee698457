/** A daemon that answers as it is told to, and remembers what it was asked. */

import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import process from "node:process";
import type { TestContext } from "node:test";
import { Controller, type ControllerOptions } from "forkd";

export const ID = "i0123456789abcdefghi";
export const SANDBOX = {
  id: ID,
  snapshot_tag: "base",
  state: "running",
  created_at_unix: 1,
  vcpus: 1,
  memory_mib: 64,
  disk_mib: 16,
  branches: [],
  metadata: { a: "1", b: "2" },
};
export const CREATED = { sandboxes: [SANDBOX], timing: { restored_us: 1, ready_us: 2 } };
export const SNAPSHOT = {
  tag: "base",
  status: "ready",
  created_at_unix: 1,
  children: [],
  vcpus: 1,
  memory_mib: 64,
  disk_mib: 16,
  size: { memory_bytes: 0, disk_bytes: 0 },
  loaded: true,
};

export interface Asked {
  line: string;
  headers: IncomingMessage["headers"];
  body: Buffer;
  json: unknown;
}

export interface Answer {
  status?: number;
  body?: string | Uint8Array | (string | Uint8Array)[];
  headers?: Record<string, string>;
  /** The connection ends without an answer, or in the middle of one. */
  cut?: boolean;
  /** Nothing is said, for ever. */
  silent?: boolean;
  /** The last piece of the body, when it is known. */
  last?: Promise<string>;
}

export function answer(value: unknown, status = 200): Answer {
  return { status, body: JSON.stringify(value), headers: { "content-type": "application/json" } };
}

export function lines(...values: unknown[]): Answer {
  const body = values.map((value) => `${JSON.stringify(value)}\n`);
  return { body, headers: { "x-request-id": "r2", "content-type": "application/x-ndjson" } };
}

export function refused(status: number, code: string, hint?: string, hint_code?: string): Answer {
  return { ...answer({ error: `it is ${code}`, code, hint, hint_code }, status), headers: { "x-request-id": "r1" } };
}

type Said = Answer | ((asked: Asked) => Answer);

/** Requests get the answers in turn, and the last one again and again. */
export class Fake {
  readonly asked: Asked[] = [];
  address = "";
  /** What happens to WebSockets; without it, they are refused as other requests are. */
  onSocket: ((peer: Peer, asked: IncomingMessage) => void) | undefined;
  #answers: Said[] = [];
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  constructor() {
    this.#server = createServer((request, response) => {
      const pieces: Buffer[] = [];
      request.on("data", (piece: Buffer) => pieces.push(piece));
      request.on("end", () => {
        const body = Buffer.concat(pieces);
        const asked: Asked = { line: `${request.method} ${request.url}`, headers: request.headers, body, json: json(body) };
        this.asked.push(asked);
        const said = (this.#answers.length > 1 ? this.#answers.shift() : this.#answers[0]) ?? {};
        const given = typeof said === "function" ? said(asked) : said;
        if (given.silent) return;
        if (given.cut && !given.body) return void request.socket.destroy();
        const whole = Array.isArray(given.body) ? undefined : Buffer.from(given.body ?? "");
        const length = whole ? { "content-length": String(whole.length + (given.cut ? 9 : 0)) } : {};
        response.writeHead(given.status ?? 200, { ...given.headers, ...(given.status === 204 ? {} : length) });
        if (given.last) response.flushHeaders();
        for (const piece of whole ? [whole] : (given.body ?? [])) response.write(piece);
        if (given.cut) setTimeout(() => request.socket.destroy(), 20);
        else if (given.last) void given.last.then((last) => response.end(last));
        else response.end();
      });
    });
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
      socket.on("error", () => undefined);
    });
    this.#server.on("upgrade", (request: IncomingMessage, socket: Socket) => {
      if (this.onSocket) this.onSocket(new Peer(request, socket), request);
      else socket.end("HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n");
    });
  }

  says(...answers: Said[]): void {
    this.#answers = answers;
  }

  get last(): Asked {
    const last = this.asked.at(-1);
    if (!last) throw new Error("nothing was asked");
    return last;
  }

  /** How many connections there are. */
  get connections(): number {
    return this.#sockets.size;
  }

  async listen(where: string | number = 0): Promise<void> {
    const listening = typeof where === "string" ? { path: where } : { port: where, host: "127.0.0.1" };
    await new Promise<void>((resolve) => this.#server.listen(listening, resolve));
    const at = this.#server.address();
    this.address = typeof at === "string" ? `unix://${at}` : `http://127.0.0.1:${(at as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

/** The daemon's side of a WebSocket, as far as the tests need it. */
export class Peer {
  onMessage: (message: string | Buffer) => void = () => undefined;
  #rest: Buffer = Buffer.alloc(0);

  constructor(
    request: IncomingMessage,
    readonly socket: Socket,
  ) {
    const key = `${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`;
    const accept = createHash("sha1").update(key).digest("base64");
    const head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: ";
    socket.write(`${head}${accept}\r\n\r\n`);
    socket.on("data", (piece: Buffer) => this.#read(piece));
  }

  send(message: unknown): void {
    const isBinary = message instanceof Uint8Array;
    const body = isBinary ? Buffer.from(message) : Buffer.from(JSON.stringify(message));
    const head = Buffer.alloc(10);
    head[0] = isBinary ? 0x82 : 0x81;
    head[1] = 127;
    head.writeBigUInt64BE(BigInt(body.length), 2);
    this.socket.write(
      Buffer.concat(body.length < 126 ? [Buffer.from([head[0], body.length]), body] : [head.subarray(0, 10), body]),
    );
  }

  #read(piece: Buffer): void {
    this.#rest = Buffer.concat([this.#rest, piece]);
    while (this.#rest.length >= 6) {
      const short = (this.#rest[1] ?? 0) & 0x7f;
      const at = short === 126 ? 4 : short === 127 ? 10 : 2;
      const size = short === 126 ? this.#rest.readUInt16BE(2) : short === 127 ? Number(this.#rest.readBigUInt64BE(2)) : short;
      if (this.#rest.length < at + 4 + size) return;
      const mask = this.#rest.subarray(at, at + 4);
      const body = Buffer.from(this.#rest.subarray(at + 4, at + 4 + size)).map((byte, index) => byte ^ (mask[index % 4] ?? 0));
      const kind = (this.#rest[0] ?? 0) & 0x0f;
      this.#rest = this.#rest.subarray(at + 4 + size);
      if (kind === 8) this.socket.end(Buffer.from([0x88, 0]));
      else if (kind < 3) this.onMessage(kind === 1 ? body.toString() : Buffer.from(body));
    }
  }
}

/** Variables that would lead to a daemon of this host. */
export const VARIABLES = ["ADDRESS", "URL", "TOKEN", "TOKEN_FILE", "SOCKET", "HOME", "TAG", "MACHINE", "AUTOSTART", "BIN"].map(
  (it) => `FORKD_${it}`,
);

/** An environment that names no daemon, until the test ends. */
export function clean(test: TestContext, values: Record<string, string> = {}): void {
  const before = { ...process.env };
  for (const name of VARIABLES) delete process.env[name];
  Object.assign(process.env, values);
  test.after(() => {
    for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
    Object.assign(process.env, before);
  });
}

/** A fake daemon and a client of it, until the test ends. */
export async function connected(test: TestContext, options: ControllerOptions = {}): Promise<[Fake, Controller]> {
  clean(test);
  const daemon = new Fake();
  await daemon.listen();
  const controller = new Controller({ address: daemon.address, token: "secret", timeout: 5, ...options });
  test.after(async () => {
    await controller.close();
    await daemon.close();
  });
  return [daemon, controller];
}

function json(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString()) as unknown;
  } catch {
    return undefined;
  }
}
