/**
 * Finds the daemon as the command line does.
 *
 * ```text
 * address  ──▶  FORKD_ADDRESS  ──▶  FORKD_URL  ──▶  this host's socket  ──▶  the machine's daemon
 * token    ──▶  FORKD_TOKEN_FILE  ──▶  FORKD_TOKEN                          with the machine's own token
 *
 * With FORKD_AUTOSTART=1, or `autostart`, and no address, `forkd hold` finds the daemon in the same order, or starts one.
 *
 * the socket     FORKD_SOCKET, else forkd.sock in forkd's directory, if a daemon listens there; else that of the host's service,
 *                unless FORKD_SOCKET or FORKD_HOME is set
 * the machine    FORKD_MACHINE, else `default`, if it runs
 * the directory  FORKD_HOME, else $XDG_DATA_HOME/forkd, else ~/.local/share/forkd
 * ```
 */

import { access, constants, readFile } from "node:fs/promises";
import { createConnection } from "node:net";
import { isAbsolute, join } from "node:path";
import process from "node:process";
import { AuthenticationError, InvalidArgumentError } from "./errors.js";

/** The socket of the service that packages install. */
const SERVICE = "/run/forkd/forkd.sock";
/** The port of daemons that listen on TCP. */
export const PORT = 8889;
/** How long this host's socket may take to accept a connection, in milliseconds. */
const PROBE_MS = 2000;

const TCP = /^(https?):\/\/([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?\/?$/;

/** `unix:///path`, `http://host:port` or `https://host:port`. */
export class Address {
  constructor(
    /** What the URLs of requests begin with. Over a socket, the host has no meaning. */
    readonly base: string,
    readonly socket?: string,
  ) {}

  toString(): string {
    return this.socket === undefined ? this.base : `unix://${this.socket}`;
  }

  /** Whether the connection stays on this host. */
  get isLocal(): boolean {
    const host = this.base.split("://")[1]?.replace(/:[0-9]+$/, "") ?? "";
    return this.socket !== undefined || host === "localhost" || host === "[::1]" || host.startsWith("127.");
  }
}

/** A daemon, and the token to show it. */
export interface Found {
  address: Address;
  token: string | undefined;
}

/** Reads an address. */
export function parse(text: string): Address {
  if (text.startsWith("unix:///") && !text.includes("\0")) {
    return new Address("http://localhost", text.slice("unix://".length));
  }
  const match = TCP.exec(text);
  const port = Number(match?.[3] ?? PORT);
  if (!match || port < 1 || port > 65535) {
    throw new InvalidArgumentError(`${JSON.stringify(text)} is not a valid address of a daemon`, {
      hint: "expected unix:///path, http://host:port or https://host:port",
    });
  }
  return new Address(`${match[1]}://${match[2]}:${port}`);
}

/** The address that is given or that the environment names. */
export function named(address?: string): Address | undefined {
  const text = address || process.env["FORKD_ADDRESS"] || process.env["FORKD_URL"];
  return text ? parse(text) : undefined;
}

/** The daemon that is named, else this host's own, else the machine's. */
export async function find(address?: string, shown?: string): Promise<Found> {
  const given = named(address);
  if (given) return { address: given, token: await token(shown) };
  const socket = process.env["FORKD_SOCKET"] || join(home(), "forkd.sock");
  const own = new Address("http://localhost", socket);
  if (await listens(socket)) return { address: own, token: await token(shown) };
  const other = process.env["FORKD_SOCKET"] || process.env["FORKD_HOME"];
  if (!other && (await mayUse(SERVICE)) && (await listens(SERVICE))) {
    return { address: new Address("http://localhost", SERVICE), token: await token(shown) };
  }
  return (await machine()) ?? { address: own, token: await token(shown) };
}

/** The token to show, if there is one. */
export async function token(given?: string): Promise<string | undefined> {
  let text = given;
  const path = process.env["FORKD_TOKEN_FILE"];
  if (text === undefined && path) {
    try {
      text = await readFile(path, "utf8");
    } catch (cause) {
      throw new AuthenticationError(`the token file ${path} cannot be read: ${message(cause)}`, { cause });
    }
  }
  text = (text ?? process.env["FORKD_TOKEN"] ?? "").trim();
  if (!/^[\x21-\x7e]*$/.test(text)) throw new AuthenticationError("the token has characters that no token has");
  return text || undefined;
}

function home(): string {
  for (const [variable, below] of [
    ["FORKD_HOME", ""],
    ["XDG_DATA_HOME", "forkd"],
    ["HOME", ".local/share/forkd"],
  ] as const) {
    const path = process.env[variable];
    if (path && isAbsolute(path)) return join(path, below);
  }
  throw new InvalidArgumentError("neither FORKD_HOME nor XDG_DATA_HOME nor HOME is set to an absolute path", {
    hint: "FORKD_ADDRESS names a daemon",
  });
}

/** Whether a daemon listens. A socket that this user may not open belongs to one, and is no reason to look elsewhere. */
function listens(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createConnection({ path });
    const end = (answer: boolean) => {
      probe.destroy();
      resolve(answer);
    };
    probe.setTimeout(PROBE_MS, () => end(false));
    probe.once("connect", () => end(true));
    probe.once("error", (error: NodeJS.ErrnoException) => end(error.code === "EACCES" || error.code === "EPERM"));
  });
}

/** Whether this user may connect to a socket. */
function mayUse(path: string): Promise<boolean> {
  return access(path, constants.W_OK).then(
    () => true,
    () => false,
  );
}

/** The daemon of a machine that runs, if one was started in it. */
async function machine(): Promise<Found | undefined> {
  const name = process.env["FORKD_MACHINE"] || "default";
  if (!/^[a-z0-9-]{1,32}$/.test(name)) return undefined;
  const directory = join(home(), "machines", name);
  try {
    const run = JSON.parse(await readFile(join(directory, "run.json"), "utf8")) as { ports: { api: number } };
    const key = (await readFile(join(directory, "token"), "utf8")).trim();
    return { address: parse(`http://127.0.0.1:${run.ports.api}`), token: key };
  } catch {
    return undefined;
  }
}

function message(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
