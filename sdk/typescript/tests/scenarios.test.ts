/**
 * The scenarios that all clients carry out: sdk/scenarios, described in docs/clients.md.
 *
 * The daemon is the one that FORKD_URL names, as it is for users; FORKD_TEST_SNAPSHOT is the snapshot that sandboxes are forked from.
 * With FORKD_TEST_GUEST=none it has no agent.
 */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import * as forkd from "forkd";
import { Sandbox, Snapshot } from "forkd";

interface Expectation {
  get?: string;
  equals?: unknown;
  length?: number;
  matches?: string;
  contains?: unknown;
  error?: string;
  code?: string;
  until?: number;
}

interface Step {
  do: string;
  on?: string;
  with?: Record<string, unknown>;
  as?: string;
  expect?: Expectation;
}

type Names = Map<string, unknown>;

const SNAPSHOT = process.env["FORKD_TEST_SNAPSHOT"] ?? "";
const HAS_GUEST = process.env["FORKD_TEST_GUEST"] !== "none";
const DIRECTORY = `${process.env["FORKD_TYPESCRIPT_SOURCE"] ?? process.cwd()}/../scenarios`;

/** Arguments that have a place of their own; the others are options. */
const PLACES: Record<string, string[]> = {
  create: ["snapshot"],
  connect: ["sandbox_id"],
  get_snapshot: ["tag"],
  value: ["of"],
  "Sandbox.exec": ["command"],
  "Sandbox.eval": ["code"],
  "Sandbox.run_code": ["code"],
  "Sandbox.fork": ["n"],
  "Sandbox.branch": ["tag"],
  "Sandbox.rollback": ["branch"],
  "Sandbox.set_timeout": ["timeout"],
  "Snapshot.fork": ["n"],
  "Commands.run": ["command"],
  "Commands.start": ["command"],
  "Commands.connect": ["pid"],
  "Commands.kill": ["pid"],
  "Commands.send_signal": ["pid", "signal"],
  "Commands.send_stdin": ["pid", "data"],
  "Commands.close_stdin": ["pid"],
  "CommandHandle.send_stdin": ["data"],
  "Contexts.interrupt": ["context"],
  "Contexts.restart": ["context"],
  "Contexts.remove": ["context"],
  "Files.write": ["path", "data"],
  "Files.read": ["path"],
  "Files.list": ["path"],
  "Files.exists": ["path"],
  "Files.make_dir": ["path"],
  "Files.remove": ["path"],
  "Files.rename": ["old_path", "new_path"],
};

/** Steps that are done on no object. */
const FREE: Record<string, (...given: never[]) => unknown> = {
  create: (snapshot: string, options: forkd.CreateOptions) => Sandbox.create(snapshot, options),
  connect: (id: string, options: object) => Sandbox.connect(id, options),
  list: (options: forkd.SandboxFilter) => all(Sandbox.list(options)),
  get_snapshot: (tag: string) => Snapshot.get(tag),
  value: (of: unknown) => of,
};

for (const file of readdirSync(DIRECTORY)
  .filter((name) => name.endsWith(".json"))
  .sort()) {
  const scenario = JSON.parse(readFileSync(`${DIRECTORY}/${file}`, "utf8")) as {
    name: string;
    needs?: string[];
    steps: Step[];
  };
  const isWithout = scenario.needs?.includes("guest") && !HAS_GUEST;
  const skip = !SNAPSHOT ? "FORKD_TEST_SNAPSHOT names no snapshot" : isWithout ? "the snapshot has no agent" : false;
  test(scenario.name, { skip, timeout: 3_600_000 }, async () => {
    const names: Names = new Map([["SNAPSHOT", SNAPSHOT]]);
    try {
      for (const [number, step] of scenario.steps.entries()) {
        await carryOut(step, names).catch((error: unknown) => {
          throw new Error(`${file}: step ${number + 1}: ${JSON.stringify(step)}: ${String(error)}`, { cause: error });
        });
      }
    } finally {
      await tidy(names);
    }
  });
}

async function carryOut(step: Step, names: Names): Promise<void> {
  const expect = filled(step.expect ?? {}, names) as Expectation;
  const deadline = Date.now() + (expect.until ?? 0) * 1000;
  for (;;) {
    try {
      return await attempt(step, expect, names);
    } catch (error) {
      if (Date.now() >= deadline) throw error;
    }
    await sleep(200);
  }
}

async function attempt(step: Step, expect: Expectation, names: Names): Promise<void> {
  if (expect.error === undefined) {
    const result = await done(step, names);
    if (step.as !== undefined) names.set(step.as, result);
    compare(expect.get === undefined ? result : found(result, expect.get.split(".")), expect);
    return;
  }
  const failed = await done(step, names).then(
    () => assert.fail("it did not fail"),
    (error: unknown) => error as forkd.ForkdError,
  );
  const family = (forkd as unknown as Record<string, typeof forkd.ForkdError>)[expect.error];
  if (!family || !(failed instanceof family)) throw failed;
  if (expect.code !== undefined) assert.equal(failed.code, expect.code);
}

async function done(step: Step, names: Names): Promise<unknown> {
  const given = filled(step.with ?? {}, names) as Record<string, unknown>;
  const [first = "", ...rest] = step.on?.split(".") ?? [];
  const target = step.on === undefined ? undefined : (found(names.get(first), rest) as object);
  const places = PLACES[target ? `${target.constructor.name}.${step.do}` : step.do] ?? [];
  const options = Object.entries(given).filter(([name]) => !places.includes(name));
  const args: unknown[] = places.map((name) => given[name]);
  // What to read as comes before the options.
  if (step.do === "read") args.push("text");
  args.push(Object.fromEntries(options.map(([name, value]) => [camel(name), value])));
  if (!target) return FREE[step.do]?.(...(args as never[]));
  const method = (target as Record<string, unknown>)[camel(step.do)];
  assert.ok(typeof method === "function", `there is no ${camel(step.do)}`);
  return (method as (...given: unknown[]) => unknown).apply(target, args);
}

function compare(result: unknown, expect: Expectation): void {
  const { equals, length, matches, contains } = expect;
  if (equals !== undefined) assert.deepEqual(result ?? null, equals);
  if (length !== undefined) assert.equal((result as unknown[]).length, length);
  if (matches !== undefined) assert.match(String(result), new RegExp(matches));
  if (typeof contains === "string") assert.ok(String(result).includes(contains));
  else if (contains !== undefined) {
    const isLike = (one: unknown) =>
      Object.entries(contains as object).every(([name, value]) => JSON.stringify(found(one, [name])) === JSON.stringify(value));
    assert.ok((result as unknown[]).some(isLike), JSON.stringify(result));
  }
}

/** A value with names replaced by what they stand for. */
function filled(value: unknown, names: Names): unknown {
  if (typeof value === "string" && value.startsWith("$")) {
    const [first = "", ...rest] = value.slice(1).split(".");
    return found(names.get(first), rest);
  }
  if (Array.isArray(value)) return value.map((one) => filled(one, names));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, filled(one, names)]));
}

function found(value: unknown, path: string[]): unknown {
  let at = value;
  for (const name of path) {
    const object = at as Record<string, unknown>;
    at = name in object ? object[name] : object[camel(name)];
  }
  return at;
}

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

async function tidy(names: Names): Promise<void> {
  const kept = [...names.values()].flat();
  for (const one of kept) if (one instanceof Sandbox) await one.kill().catch(() => undefined);
  for (const one of kept) {
    if (one instanceof Snapshot && one.info.branched_from) await one.delete({ cascade: true }).catch(() => undefined);
  }
}

async function all<T>(values: AsyncIterable<T>): Promise<T[]> {
  const every: T[] = [];
  for await (const value of values) every.push(value);
  return every;
}
