/** Types of the API that docs/openapi.json does not have yet. */

import type {
  ErrorBody,
  EvalError,
  Evaluated as EvaluatedBefore,
  Event as EventBefore,
  FileInfo,
  Language,
  Signal,
} from "./models.js";

export interface CodeContext {
  id: string;
  language: string;
  cwd: string;
  /** Whether code runs in it. */
  busy: boolean;
}

export interface CreateCodeContext {
  language?: Language;
  cwd?: string | null;
}

export interface Interrupt {
  grace_secs?: number;
}

export interface Interrupted {
  /** Whether the code did not stop in time, and its interpreter was started anew. */
  restarted: boolean;
}

export interface Process {
  pid: number;
  args: string[];
  /** Whether it has a terminal. */
  tty: boolean;
  cwd?: string | null;
  /** A name that an E2B client has given it. */
  tag?: string | null;
}

export interface StartProcess {
  args: string[];
  cwd?: string | null;
  env?: Record<string, string>;
  /** Whether it can be written to. */
  stdin?: boolean;
  timeout_secs?: number | null;
  user?: string | null;
}

export interface StartedProcess {
  pid: number;
}

export interface SendSignal {
  signal: Signal;
}

export interface Displayed {
  data: Record<string, string>;
  /** Whether it is the value of the last expression. */
  main: boolean;
}

export type EvalEvent =
  | { stdout: string }
  | { stderr: string }
  | { result: Displayed }
  | { raised: EvalError }
  | { ended: { timed_out: boolean; truncated: boolean } }
  | { error: ErrorBody };

export type Evaluated = EvaluatedBefore & { timed_out?: boolean };

export interface FileList {
  files: FileInfo[];
  truncated: boolean;
  next?: string | null;
}

export type Event = EventBefore & { cursor?: string };
