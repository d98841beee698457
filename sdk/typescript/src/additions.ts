/** Types of the API that docs/openapi.json does not have yet. */

import type { ErrorBody, EvalError, Evaluated, Event, Exec, FileInfo, Language, Signal } from "./models.js";

export interface Context {
  id: string;
  language: Language;
  cwd: string;
  /** Whether code runs in it. */
  busy: boolean;
}

export interface CreateContext {
  language: Language;
  cwd?: string | null;
}

export interface Interrupted {
  /** Whether the code did not stop in time, and its interpreter was started anew. */
  restarted: boolean;
}

export interface Process {
  pid: number;
  args: string[];
  cwd?: string | null;
  user?: string | null;
  tag?: string | null;
}

export type StartProcess = Omit<Exec, "timeout_secs"> & { timeout_secs?: number | null; tag?: string | null };

export interface StartedProcess {
  pid: number;
}

export interface SignalProcess {
  signal: Signal;
}

export type EvalEvent =
  | { stdout: string }
  | { stderr: string }
  | { result: { data: Record<string, string>; main: boolean } }
  | { raised: EvalError }
  | { ended: { timed_out: boolean; truncated: boolean } }
  | { error: ErrorBody };

export type EvaluatedWithTimeout = Evaluated & { timed_out?: boolean };

export interface FilePage {
  files: FileInfo[];
  truncated: boolean;
  next?: string | null;
}

export type EventWithCursor = Event & { cursor?: string };
