/**
 * `fetch` and `WebSocket` of the runtime: what Node, Bun and Deno do differently.
 *
 * ```text
 *         a Unix socket                    certificates              WebSocket
 * Node    undici's Pool                    undici's Pool             undici's, else the global one (Node 22)
 * Bun     the option `unix` of fetch       the option `tls`          ws+unix://
 * Deno    Deno.createHttpClient            Deno.createHttpClient     the option `client`
 * ```
 *
 * undici is an optional dependency. Without it, Node reaches daemons over TCP only, and its own `fetch` gives up when nothing
 * comes for 300 seconds.
 */

import { readFile } from "node:fs/promises";
import process from "node:process";
import { rootCertificates } from "node:tls";
import type { Address } from "./address.js";
import { ConnectionFailedError, InvalidArgumentError } from "./errors.js";
import { CONNECT } from "./policy.js";

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** What this client uses of a WebSocket. */
export interface Socket {
  binaryType: string;
  readonly bufferedAmount: number;
  send(data: string | Uint8Array): void;
  close(): void;
  addEventListener(kind: "open" | "close" | "error", listener: (event: { message?: string; code?: number }) => void): void;
  addEventListener(kind: "message", listener: (event: { data: unknown }) => void): void;
}

type SocketClass = new (url: string, options: object) => Socket;

/** How connections to one daemon are made. */
export interface Connector {
  fetch: Fetch;
  websocket: (path: string, headers: Record<string, string>) => Socket;
  /** Ends all connections. */
  close: () => Promise<void>;
  /** Ends those of no request, and the others with their requests. No new ones may follow. */
  retire: () => Promise<void>;
}

/** `true` for the certificates of the system, a path of a file of certificates to trust as well, `false` to trust all. */
export type Verify = boolean | string;

export interface ConnectorOptions {
  verify: Verify;
  /** Used instead of the runtime's own. It gets no socket and no certificates from this client. */
  fetch?: Fetch | undefined;
}

interface Certificates {
  ca: string[] | undefined;
  trustAll: boolean;
}

const scope = globalThis as {
  Bun?: unknown;
  Deno?: { createHttpClient(options: object): { close(): void } };
  WebSocket?: SocketClass;
};

/** Prepares connections to an address. None is made before the first request. */
export async function connector(address: Address, options: ConnectorOptions): Promise<Connector> {
  const trusted = await certificates(address, options.verify);
  const made = scope.Deno ? deno(address, trusted) : scope.Bun ? bun(address, trusted) : await node(address, trusted, options);
  return options.fetch ? { ...made, fetch: options.fetch } : made;
}

async function node(address: Address, trusted: Certificates, options: ConnectorOptions): Promise<Connector> {
  const undici = await import("undici").catch(() => undefined);
  if (undici) {
    const { ca, trustAll } = trusted;
    // An Agent that is to close forgets its connections, and could not end them any more.
    const dispatcher = new undici.Pool(address.base, {
      // Time limits are the transport's.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: {
        timeout: CONNECT * 1000,
        ...(address.socket === undefined ? {} : { socketPath: address.socket }),
        ...(ca ? { ca } : {}),
        ...(trustAll ? { rejectUnauthorized: false } : {}),
      },
    });
    const send = undici.fetch as unknown as (url: string, init: object) => Promise<Response>;
    const WebSocket = undici.WebSocket as unknown as SocketClass;
    return {
      fetch: (url, init) => send(url, { ...init, dispatcher }),
      websocket: (path, headers) => new WebSocket(websocketUrl(address, path), { headers, dispatcher }),
      close: () => dispatcher.destroy(),
      retire: () => dispatcher.close(),
    };
  }
  if (!options.fetch && address.socket !== undefined) {
    throw new ConnectionFailedError(`the daemon is at ${address}, which Node reaches with undici only`, {
      hint: "npm install undici@7, or FORKD_ADDRESS names a daemon with a port",
    });
  }
  if (trusted.ca || trusted.trustAll) {
    throw new InvalidArgumentError("certificates can be chosen with undici only", {
      hint: "npm install undici@7, or NODE_EXTRA_CA_CERTS names a file of certificates to trust",
    });
  }
  return {
    fetch: (url, init) => fetch(url, init),
    websocket: (path, headers) => global(address, path, { headers }),
    close: done,
    retire: done,
  };
}

function bun(address: Address, trusted: Certificates): Connector {
  const { ca, trustAll } = trusted;
  const tls = ca || trustAll ? { tls: { ...(ca ? { ca } : {}), ...(trustAll ? { rejectUnauthorized: false } : {}) } } : {};
  const unix = address.socket;
  return {
    // Time limits are the transport's.
    fetch: (url, init) =>
      fetch(url, { ...init, ...tls, ...(unix === undefined ? {} : { unix }), timeout: false } as unknown as RequestInit),
    websocket: (path, headers) =>
      unix === undefined
        ? global(address, path, { headers, ...tls })
        : global(address, path, { headers }, `ws+unix://${unix}:${path}`),
    close: done,
    retire: done,
  };
}

function deno(address: Address, trusted: Certificates): Connector {
  if (trusted.trustAll) {
    throw new InvalidArgumentError("verify: false does not work in Deno", {
      hint: "deno run --unsafely-ignore-certificate-errors, or verify names a file of certificates to trust",
    });
  }
  const client = scope.Deno?.createHttpClient({
    ...(trusted.ca ? { caCerts: trusted.ca } : {}),
    ...(address.socket === undefined ? {} : { proxy: { transport: "unix", path: address.socket } }),
  });
  return {
    fetch: (url, init) => fetch(url, { ...init, client } as unknown as RequestInit),
    websocket: (path, headers) => global(address, path, { headers, client }),
    close: async () => client?.close(),
    // Requests in flight have the client, too.
    retire: async () => client?.close(),
  };
}

/** The runtime's own WebSocket. */
function global(address: Address, path: string, options: object, url = websocketUrl(address, path)): Socket {
  if (!scope.WebSocket) {
    throw new ConnectionFailedError("programs in the background need a WebSocket, which this Node has none of", {
      hint: "npm install undici@7, or use Node 22",
    });
  }
  return new scope.WebSocket(url, options);
}

function websocketUrl(address: Address, path: string): string {
  return address.base.replace(/^http/, "ws") + path;
}

/** The certificates to trust, if others than the runtime's own are named. */
async function certificates(address: Address, verify: Verify): Promise<Certificates> {
  if (!address.base.startsWith("https:")) return { ca: undefined, trustAll: false };
  if (verify === false) return { ca: undefined, trustAll: true };
  const file = typeof verify === "string" ? verify : process.env["SSL_CERT_FILE"];
  if (!file) return { ca: undefined, trustAll: false };
  try {
    const own = await readFile(file, "utf8");
    // Deno adds them to its own; the others replace theirs by them.
    return { ca: scope.Deno ? [own] : [...rootCertificates, own], trustAll: false };
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new ConnectionFailedError(`the certificates of ${file} cannot be read: ${reason}`, { cause });
  }
}

async function done(): Promise<void> {}
