/** Retries and time limits: docs/clients.md describes them, and the Python client has the same. */

import { ConnectionFailedError, ServerError } from "./errors.js";

/** Seconds until there is a connection. */
export const CONNECT = 10;
/** Seconds until an answer begins, and between two of its pieces, unless a request has a limit of its own. */
export const USUAL = 60;
/** The same while sandboxes are made or a snapshot is written. */
export const LONG = 600;
/** Seconds after a command's own limit within which the daemon says that it is over. */
export const GRACE = 30;
/** Seconds until forkd hold has found or started a daemon. Its own limits are shorter: 60 s, half an hour for a new machine. */
export const START = 1900;
/** The longest that a command or code may be given, in seconds. */
export const LONGEST = 86400;

/** How often a request is repeated that may be, unless the caller says. */
export const RETRIES = 2;
/** Seconds before the second, third, … attempt; the last one counts for all that follow. */
export const PAUSES: readonly number[] = [0.1, 0.5];
/** Each pause is longer by a random part of this much of it, so that clients do not come back all at once. */
export const JITTER = 0.5;

/** The most of an answer that is read as a whole. The daemon keeps output to 16 MiB, and JSON may take six bytes for one. */
export const LARGEST = 128 << 20;
/** The most of an error's answer. */
export const LARGEST_ERROR = 1 << 20;
/** The longest line of an answer in lines. */
export const LONGEST_LINE = 16 << 20;
/** What is sent of a file at once. */
export const PIECE = 256 << 10;

/** Whether the same request may succeed a moment later. */
export function mayPass(error: unknown): boolean {
  return error instanceof ConnectionFailedError || (error instanceof ServerError && error.code === "unavailable");
}

/** Milliseconds to wait before another attempt, of which there were so many. */
export function pause(attempts: number): number {
  const seconds = PAUSES[Math.min(attempts, PAUSES.length) - 1] ?? 0;
  return seconds * 1000 * (1 + Math.random() * JITTER);
}

/** A time as the API has it, in whole seconds. */
export function seconds(timeout: number | null): number | null {
  return timeout === null ? null : Math.max(1, Math.ceil(timeout));
}

/** A command's time in whole seconds; 0 and `null` are the longest there is. */
export function limit(timeout: number | null): number {
  return Math.min(seconds(timeout || null) ?? LONGEST, LONGEST);
}
