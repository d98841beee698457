/** A request, and what its answer means. */

import { randomUUID } from "node:crypto";
import { foreign, InvalidArgumentError } from "./errors.js";

export const JSON_TYPE = "application/json";
export const LINES = "application/x-ndjson";
export const BYTES = "application/octet-stream";
export const TAR = "application/x-tar";

/** Options of every request. */
export interface RequestOptions {
  /** Ends the request; it then rejects with the signal's reason. The daemon may have done what was asked. */
  signal?: AbortSignal | undefined;
}

/** A request. `read` makes the answer's body into what the caller gets. */
export interface Call<T> {
  method: string;
  path: string;
  read: (body: Uint8Array) => T;
  accept: string;
  headers: Record<string, string>;
  body?: string | undefined;
  /** Seconds until the answer begins, and between its pieces. Without it, the client's own. */
  timeout?: number | undefined;
  /** Whether sending it twice has the same result as sending it once. */
  repeatable: boolean;
}

export type Values = Record<string, string | number | boolean | readonly string[] | null | undefined>;

/** Looks something up. */
export function get<T>(path: string, values: Values = {}): Call<T> {
  return call("GET", path + query(values), undefined, true);
}

/** Sets something. */
export function put<T>(path: string, body: unknown): Call<T> {
  return call("PUT", path, body, true);
}

/** Removes something. What was removed a moment ago is answered without a body. */
export function remove<T>(path: string, values: Values = {}): Call<T | undefined> {
  const read = (body: Uint8Array) => (body.byteLength ? (parsedObject(body) as T) : undefined);
  return { ...call<T>("DELETE", path + query(values), undefined, true), read };
}

/** Does something, once. */
export function post<T>(path: string, body?: unknown): Call<T> {
  return call("POST", path, body, false);
}

/** Makes something, once, however often it is sent: the daemon knows it by its key. */
export function make<T>(path: string, body: unknown): Call<T> {
  const made = repeatable(post<T>(path, body));
  return { ...made, headers: { ...made.headers, "idempotency-key": randomUUID() } };
}

/** The same, which may be sent again. */
export function repeatable<T>(it: Call<T>): Call<T> {
  return { ...it, repeatable: true };
}

/** The same with a time limit of its own. */
export function within<T>(seconds: number, it: Call<T>): Call<T> {
  return { ...it, timeout: seconds };
}

/** The same with an answer of another type. */
export function accepting<T, U>(accept: string, read: (body: Uint8Array) => U, it: Call<T>): Call<U> {
  return { ...it, accept, read };
}

/** The same with a body that comes with the call. */
export function carrying<T>(type: string, it: Call<T>): Call<T> {
  return { ...it, headers: { ...it.headers, "content-type": type } };
}

/** A part of a path, whatever it is. */
export function part(text: string): string {
  // A URL parser takes dots alone for a way through the path, even when they are escaped.
  if (text === "" || text === "." || text === "..") throw new InvalidArgumentError(`${JSON.stringify(text)} is not a name`);
  return encodeURIComponent(text);
}

/** The query of a URL, with its question mark; what is `undefined` or `null` is left out. */
export function query(values: Values): string {
  const pairs: string[] = [];
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) pairs.push(`${name}=${encodeURIComponent(String(one))}`);
    }
  }
  return pairs.length ? `?${pairs.join("&")}` : "";
}

/** The JSON of an answer or of a line of it. */
export function parsed(body: Uint8Array | string): unknown {
  try {
    return JSON.parse(typeof body === "string" ? body : new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch (cause) {
    throw foreign(cause);
  }
}

/** The JSON object of an answer or of a line of it. */
export function parsedObject(body: Uint8Array | string): Record<string, unknown> {
  const value = parsed(body);
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw foreign();
  return value as Record<string, unknown>;
}

export const asText = (body: Uint8Array): string => new TextDecoder().decode(body);
export const asBytes = (body: Uint8Array): Uint8Array => body;
export const asNothing = (): void => undefined;

function call<T>(method: string, path: string, body: unknown, again: boolean): Call<T> {
  const headers: Record<string, string> = body === undefined ? {} : { "content-type": JSON_TYPE };
  return {
    method,
    path,
    read: (answer) => parsedObject(answer) as T,
    accept: JSON_TYPE,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    repeatable: again,
  };
}
