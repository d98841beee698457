/** The package, and that it is one with the rest of the repository. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { FAMILIES, VERSION } from "forkd";
import type { Call } from "../src/call.js";
import * as numbersOfPolicy from "../src/policy.js";
import * as requests from "../src/requests.js";

// target/forkd-typescript/out/tests is where this runs; with-tools begins here.
const here = process.env["FORKD_TYPESCRIPT_SOURCE"] ?? process.cwd();
const text = (path: string) => readFile(`${here}/${path}`, "utf8");

test("the version is forkd's", async () => {
  const own = JSON.parse(await text("package.json")) as { version: string };
  const lock = JSON.parse(await text("package-lock.json")) as { version: string };
  const workspace = /^version = "(.*)"$/m.exec(await text("../../Cargo.toml"))?.[1];
  assert.deepEqual([VERSION, own.version, lock.version], [workspace, workspace, workspace]);
});

test("each of the daemon's codes has its class", async () => {
  const document = JSON.parse(await text("../../docs/openapi.json")) as {
    components: { schemas: { ErrorCode: { enum: string[] } } };
  };
  assert.deepEqual(Object.keys(FAMILIES).sort(), document.components.schemas.ErrorCode.enum.sort());
});

/** What the functions of src/requests.ts ask for, by method and path as docs/openapi.json has them. */
async function requested(): Promise<[string, Call<unknown> | string][]> {
  const { paths } = JSON.parse(await text("../../docs/openapi.json")) as { paths: Record<string, object> };
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  const all = Object.entries(requests) as [string, (...given: unknown[]) => Call<unknown> | string][];
  return all.map(([name, request]) => {
    // A body is only ever written as JSON.
    const second = { connectProcess: 1, signalProcess: 1, processStdin: 1, proxy: 1 }[name] ?? "ARG";
    const made = request("ARG", ["execute", "evaluate"].includes(name) ? { timeout_secs: 1 } : second, "ARG");
    const asked = typeof made === "string" ? `GET ${made}` : `${made.method} ${made.path.split("?")[0] ?? ""}`;
    const found = operations.filter((one) => new RegExp(`^${one.replace(/\{\w+\}/g, "(ARG|1)")}$`).test(asked));
    assert.equal(found.length, 1, `${asked} of ${name} is [${found.join(", ")}] in docs/openapi.json`);
    return [found[0] ?? "", made];
  });
}

test("each of the daemon's requests has one function, with the Python client's retries and limits", async () => {
  const policy = JSON.parse(await text("../policy.json")) as { numbers: Record<string, unknown>; requests: object };
  const ours = (await requested()).map(([name, call]) => {
    // A WebSocket's, or what the caller asks for itself.
    if (typeof call === "string") return [name, { path_only: true }] as const;
    const { repeatable: repeated, timeout } = call;
    return [
      name,
      timeout === undefined ? { repeated } : { repeated, limit: timeout === Infinity ? "unlimited" : timeout },
    ] as const;
  });
  assert.equal(new Set(ours.map(([name]) => name)).size, ours.length);
  assert.deepEqual(Object.fromEntries(ours), policy.requests);
  // The Python client's tests compare the file with docs/openapi.json.
  const numbers = Object.keys(policy.numbers).map((name) => [name, (numbersOfPolicy as Record<string, unknown>)[name]]);
  assert.deepEqual(Object.fromEntries(numbers), policy.numbers);
});

test("the lock names no registry", async () => {
  assert.ok(!(await text("package-lock.json")).includes('"resolved"'));
});
