/** Code in a sandbox's interpreters, and the contexts that it runs in. */

import { parsedObject, type RequestOptions } from "./call.js";
import { type Controller, given } from "./controller.js";
import { ConnectionFailedError, EvaluationTimeoutError, fromBody } from "./errors.js";
import { tell } from "./handlers.js";
import type { CodeContext, Eval, EvalError, Evaluated, Language } from "./models.js";
import { LARGEST, limit } from "./policy.js";
import * as requests from "./requests.js";
import { Execution, type Handler, Result } from "./results.js";

export interface RunCodeOptions extends RequestOptions {
  /** Without it, Python. */
  language?: Language | undefined;
  /** Without it, the language's default one. */
  context?: string | CodeContext | undefined;
  envs?: Record<string, string> | undefined;
  /** Seconds until it is interrupted [default: 300]; 0 and `null` are a day. */
  timeout?: number | null | undefined;
  /** Are called with output, values and pictures, and the error, as they arrive. */
  onStdout?: Handler<string> | undefined;
  onStderr?: Handler<string> | undefined;
  onResult?: Handler<Result> | undefined;
  onError?: Handler<EvalError> | undefined;
}

/** Runs code, and returns its values, output and error. */
export async function runCode(
  controller: Controller,
  sandboxId: string,
  code: string,
  options: RunCodeOptions,
): Promise<Execution> {
  const { language = "python", context, envs, timeout = 300 } = options;
  const seconds = limit(timeout);
  const body: Eval = {
    code,
    language,
    timeout_secs: seconds,
    ...given({ env: envs, context: typeof context === "object" ? context.id : context }),
  };
  const { transport } = controller;
  const answer = await transport.stream(requests.evaluate(sandboxId, body), options);
  const isStream = answer.response.headers.get("content-type")?.startsWith("application/x-ndjson");
  const execution = isStream
    ? await streamed(transport.lines(answer), answer.requestId, options)
    : await whole(parsedObject(await transport.body(answer, LARGEST)), options);
  if (execution.timedOut) throw new EvaluationTimeoutError(seconds, execution);
  return execution;
}

/** An answer that comes line by line. */
async function streamed(
  lines: AsyncIterable<Record<string, unknown>>,
  requestId: string | undefined,
  options: RunCodeOptions,
): Promise<Execution> {
  const execution = new Execution();
  for await (const line of lines) {
    const { stdout, stderr, result, raised, ended, error } = line as {
      stdout?: string;
      stderr?: string;
      result?: { data: Record<string, string>; main: boolean };
      raised?: EvalError;
      ended?: { timed_out: boolean; truncated: boolean };
      error?: Record<string, unknown>;
    };
    if (error) throw fromBody(error, undefined, requestId);
    if (stdout !== undefined) {
      execution.logs.stdout.push(stdout);
      await tell(options.onStdout, stdout);
    } else if (stderr !== undefined) {
      execution.logs.stderr.push(stderr);
      await tell(options.onStderr, stderr);
    } else if (result) {
      const shown = new Result(result.data, result.main);
      execution.results.push(shown);
      await tell(options.onResult, shown);
    } else if (raised) {
      execution.error = raised;
      await tell(options.onError, raised);
    } else if (ended) {
      execution.timedOut = ended.timed_out;
      execution.truncated = ended.truncated;
      return execution;
    }
  }
  throw new ConnectionFailedError("the daemon ended the connection before the code's end");
}

/** The answer of a daemon that does not stream code: all is told at the end. */
async function whole(evaluated: Record<string, unknown>, options: RunCodeOptions): Promise<Execution> {
  const execution = Execution.of(evaluated as unknown as Evaluated);
  for (const text of execution.logs.stdout) await tell(options.onStdout, text);
  for (const text of execution.logs.stderr) await tell(options.onStderr, text);
  for (const result of execution.results) await tell(options.onResult, result);
  if (execution.error) await tell(options.onError, execution.error);
  return execution;
}

/** The interpreters of a sandbox. Each keeps its state from call to call. */
export class Contexts {
  readonly #controller: Controller;
  readonly #id: string;

  constructor(controller: Controller, sandboxId: string) {
    this.#controller = controller;
    this.#id = sandboxId;
  }

  list(options?: RequestOptions): Promise<CodeContext[]> {
    return this.#controller.transport.send(requests.listContexts(this.#id), options);
  }

  /** Starts an interpreter. */
  create(options: RequestOptions & { language?: Language; cwd?: string } = {}): Promise<CodeContext> {
    const { language = "python", cwd, signal } = options;
    return this.#controller.transport.send(requests.createContext(this.#id, { language, ...given({ cwd }) }), { signal });
  }

  /** Ends an interpreter. */
  remove(context: string | CodeContext, options?: RequestOptions): Promise<void> {
    return this.#controller.transport.send(requests.removeContext(this.#id, id(context)), options);
  }

  /** Restarts an interpreter: its state is lost. */
  restart(context: string | CodeContext, options?: RequestOptions): Promise<void> {
    return this.#controller.transport.send(requests.restartContext(this.#id, id(context)), options);
  }

  /**
   * Interrupts the code that runs. Code that does not stop within `grace` seconds [default: 5] is ended with its interpreter, which
   * starts anew. Whether that happened.
   */
  async interrupt(context: string | CodeContext, options: RequestOptions & { grace?: number } = {}): Promise<boolean> {
    const { grace, signal } = options;
    const call = requests.interruptContext(this.#id, id(context), grace);
    return (await this.#controller.transport.send(call, { signal })).restarted;
  }
}

function id(context: string | CodeContext): string {
  return typeof context === "string" ? context : context.id;
}
