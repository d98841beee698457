/**
 * A private daemon, started by `forkd hold` if none is running; this module starts `forkd hold`.
 *
 * ```text
 * this process ══ a pipe, closed when this process ends, however it does ══▶ forkd hold ──▶ the daemon, or the machine
 *              ◀── one line of JSON: where the daemon is ──
 * ```
 */

import { type ChildProcess, spawn } from "node:child_process";
import process from "node:process";
import { type Found, named, parse, token } from "./address.js";
import { ConnectionFailedError, ForkdError, InvalidArgumentError, ProtocolError } from "./errors.js";
import { START } from "./policy.js";

/** The longest line that is read, in characters. */
const LONGEST = 65536;
const YES = ["1", "true", "yes", "on"];
const NO = ["", "0", "false", "no", "off"];

/** Whether to start a daemon if none is running. If an address is given, no daemon is started. */
export function wanted(given: boolean | undefined, address: string | undefined): boolean {
  if (named(address)) return false;
  if (given !== undefined) return given;
  const text = (process.env["FORKD_AUTOSTART"] ?? "").toLowerCase();
  if (![...YES, ...NO].includes(text)) {
    throw new InvalidArgumentError(`FORKD_AUTOSTART is ${JSON.stringify(text)}`, { hint: "expected 1 or 0" });
  }
  return YES.includes(text);
}

/** `forkd hold`, started when it is needed. The daemon ends with the last such process. */
export class Helper {
  readonly #token: string | undefined;
  #child: ChildProcess | undefined;
  #found: Promise<Found> | undefined;

  constructor(token: string | undefined) {
    this.#token = token;
  }

  /** Where the daemon is. One that is gone is started again. */
  find(): Promise<Found> {
    if (!this.#found) {
      const finding = this.#start();
      this.#found = finding;
      finding.catch(() => this.#forget(finding));
    }
    return this.#found;
  }

  /** Called if the daemon does not listen. One that was not held may have been stopped, and is looked for again. */
  lost(): void {
    if (!this.#child) this.#found = undefined;
  }

  /** Lets go of the daemon. The next `find` starts over. */
  end(): void {
    this.#child?.stdin?.destroy();
    this.#child = undefined;
    this.#found = undefined;
  }

  #forget(finding: Promise<Found> | undefined): void {
    if (this.#found === finding) this.#found = undefined;
  }

  async #start(): Promise<Found> {
    const program = process.env["FORKD_BIN"] || "forkd";
    // In a session of its own: a Ctrl-C is for this process, which may have sandboxes to remove.
    const child = spawn(program, ["hold"], { stdio: ["pipe", "pipe", "inherit"], detached: true });
    this.#child = child;
    // What it does after its line is not waited for, and it does not keep this process alive.
    child.on("error", () => undefined);
    child.stdin?.on("error", () => undefined);
    try {
      const said = await answer(child, program);
      if (typeof said["error"] === "string") {
        const hint = typeof said["hint"] === "string" ? said["hint"] : undefined;
        throw new ConnectionFailedError(said["error"], { hint });
      }
      const { url, token: own, private: isPrivate } = said;
      if (typeof url !== "string" || typeof isPrivate !== "boolean") {
        throw new ProtocolError("forkd hold has said neither url nor private", { hint: "is it of another version?" });
      }
      const found = { address: parse(url), token: typeof own === "string" ? own : await token(this.#token) };
      if (isPrivate) {
        const finding = this.#found;
        child.once("exit", () => {
          if (this.#child === child) this.#child = undefined;
          this.#forget(finding);
        });
        letGo(child);
      } else {
        this.#drop(child);
      }
      return found;
    } catch (error) {
      this.#drop(child);
      throw error;
    }
  }

  #drop(child: ChildProcess): void {
    child.stdin?.destroy();
    letGo(child);
    if (this.#child === child) this.#child = undefined;
  }
}

const helpers = new Map<string, Helper>();
const VARIABLES = ["FORKD_HOME", "FORKD_SOCKET", "FORKD_MACHINE", "FORKD_BIN", "XDG_DATA_HOME", "HOME"];

/** The helper of all controllers that callers have not made. It ends with this process. */
export function shared(token: string | undefined): Helper {
  const key = JSON.stringify([token, ...VARIABLES.map((name) => process.env[name])]);
  let helper = helpers.get(key);
  if (!helper) {
    helper = new Helper(token);
    helpers.set(key, helper);
  }
  return helper;
}

/** Lets this process end while the other one lives. */
function letGo(child: ChildProcess): void {
  child.stdout?.destroy();
  // Deno refuses it for one that could not be started.
  if (child.pid !== undefined) child.unref();
  // Sockets in Node; other runtimes may have streams that keep nothing alive.
  (child.stdin as { unref?: () => void } | null)?.unref?.();
}

/** The line that it says when the daemon answers. */
function answer(child: ChildProcess, program: string): Promise<Record<string, unknown>> {
  return new Promise((resolve, reject) => {
    let text = "";
    const timer = setTimeout(() => {
      fail(new ConnectionFailedError(`forkd hold has found and started no daemon within ${START} s`));
    }, START * 1000);
    const fail = (error: ForkdError) => {
      clearTimeout(timer);
      reject(error);
    };
    child.once("error", (cause: NodeJS.ErrnoException) => {
      const missing = process.env["FORKD_BIN"]
        ? `FORKD_BIN names ${program}, which is no program`
        : "there is no program forkd on PATH";
      const reason = cause.code === "ENOENT" ? missing : `${program} cannot be run: ${cause.message}`;
      const hint = "install forkd, or FORKD_BIN names it, or FORKD_ADDRESS a daemon";
      fail(new ConnectionFailedError(`no daemon can be started: ${reason}`, { hint, cause }));
    });
    child.once("close", (code, signal) => {
      const how = code === null ? `signal ${signal}` : `status ${code}`;
      const hint = "run it by hand: forkd hold </dev/null";
      fail(new ConnectionFailedError(`forkd hold ended with ${how} and no answer`, { hint }));
    });
    child.stdout?.setEncoding("utf8");
    child.stdout?.on("data", (piece: string) => {
      text += piece;
      const end = text.indexOf("\n");
      if (end < 0) {
        if (text.length > LONGEST) fail(new ProtocolError("the answer of forkd hold is too long"));
        return;
      }
      clearTimeout(timer);
      const said = parsed(text.slice(0, end));
      if (said) resolve(said);
      else fail(new ProtocolError("the answer of forkd hold is not a line of JSON", { hint: "is FORKD_BIN forkd?" }));
    });
  });
}

function parsed(line: string): Record<string, unknown> | undefined {
  try {
    const said: unknown = JSON.parse(line);
    return typeof said === "object" && said !== null && !Array.isArray(said) ? (said as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
