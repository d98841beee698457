/** How commands and code ended. */

import { CommandExitError, CommandTimeoutError, InvalidArgumentError } from "./errors.js";
import type { EvalError, Evaluated, Executed } from "./models.js";

/** A string is a shell command, for `/bin/sh`; a list is a program and its arguments. */
export type Command = string | readonly string[];

/** Is told something; what it returns is awaited. */
export type Handler<T> = (told: T) => unknown;

/** How a command ended. */
export class CommandResult {
  constructor(
    readonly stdout: string,
    readonly stderr: string,
    /** 128 plus the signal's number if a signal ended it. */
    readonly exitCode: number,
    /** Whether it was ended because its time was over. */
    readonly timedOut = false,
    /** Whether there was more output than an answer holds. */
    readonly truncated = false,
  ) {}

  static of(executed: Executed): CommandResult {
    return new CommandResult(executed.stdout, executed.stderr, executed.exit_code, executed.timed_out, executed.truncated);
  }

  /** The same, unless the command failed. */
  checked(timeout: number): this {
    if (this.timedOut) throw new CommandTimeoutError(timeout, this.stdout, this.stderr);
    if (this.exitCode !== 0) throw new CommandExitError(this.exitCode, this.stdout, this.stderr);
    return this;
  }
}

/** A program and its arguments. */
export function args(command: Command): string[] {
  if (typeof command === "string") return ["/bin/sh", "-c", command];
  if (command.length === 0) throw new InvalidArgumentError("there is no program to run");
  return [...command];
}

/** Bytes of a stream as text; a character may come in two pieces. */
export class Text {
  readonly #decoder = new TextDecoder();
  #whole = "";

  /** The text of these bytes, as far as it is known. */
  add(data: Uint8Array): string {
    return this.#keep(this.#decoder.decode(data, { stream: true }));
  }

  /** The text of an incomplete character at the end. */
  end(): string {
    return this.#keep(this.#decoder.decode());
  }

  toString(): string {
    return this.#whole;
  }

  #keep(part: string): string {
    this.#whole += part;
    return part;
  }
}

/** Something that was displayed: the same in several formats, by MIME type. Pictures are in base64. */
export class Result {
  constructor(
    readonly formats: Readonly<Record<string, string>>,
    /** Whether it is the value of the last expression. */
    readonly isMainResult = false,
  ) {}

  get text(): string | undefined {
    return this.formats["text/plain"];
  }

  get html(): string | undefined {
    return this.formats["text/html"];
  }

  get markdown(): string | undefined {
    return this.formats["text/markdown"];
  }

  get svg(): string | undefined {
    return this.formats["image/svg+xml"];
  }

  get png(): string | undefined {
    return this.formats["image/png"];
  }

  get jpeg(): string | undefined {
    return this.formats["image/jpeg"];
  }

  get latex(): string | undefined {
    return this.formats["text/latex"];
  }

  /** The value itself; `undefined` if it is missing or not JSON. */
  get json(): unknown {
    try {
      return JSON.parse(this.formats["application/json"] ?? "") as unknown;
    } catch {
      return undefined;
    }
  }
}

/** What code printed, in the pieces in which it came. */
export interface Logs {
  stdout: string[];
  stderr: string[];
}

/** Values, pictures, output and the error of code. */
export class Execution {
  readonly results: Result[] = [];
  readonly logs: Logs = { stdout: [], stderr: [] };
  error: EvalError | undefined;
  /** Whether the code was interrupted because its time was over. */
  timedOut = false;
  /** Whether there was more output than an answer holds. */
  truncated = false;

  /** The value of the last expression, as text. */
  get text(): string | undefined {
    return this.results.find((result) => result.isMainResult)?.text;
  }

  static of(evaluated: Evaluated & { timed_out?: boolean }): Execution {
    const execution = new Execution();
    const { result, results } = evaluated;
    const hasMain = result !== undefined && result !== null;
    // What is displayed comes in order, and the last expression's value last.
    results.forEach((formats, at) => {
      execution.results.push(new Result(formats, hasMain && at === results.length - 1));
    });
    if (hasMain && results.length === 0) execution.results.push(new Result({ "text/plain": result }, true));
    if (evaluated.stdout) execution.logs.stdout.push(evaluated.stdout);
    if (evaluated.stderr) execution.logs.stderr.push(evaluated.stderr);
    execution.error = evaluated.error ?? undefined;
    execution.timedOut = evaluated.timed_out ?? false;
    execution.truncated = evaluated.truncated;
    return execution;
  }
}
