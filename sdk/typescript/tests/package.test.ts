/** The package, and that it is one with the rest of the repository. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { FAMILIES, VERSION } from "forkd";

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

test("each of the daemon's requests has its function", async () => {
  const document = JSON.parse(await text("../../docs/openapi.json")) as { paths: Record<string, object> };
  const requests = await text("src/requests.ts");
  for (const path of Object.keys(document.paths)) {
    const last =
      path
        .split("/")
        .filter((part) => part && !part.startsWith("{"))
        .at(-1) ?? "";
    assert.ok(requests.includes(`/${last}`) || path === "/openapi.json", `${path} is not in src/requests.ts`);
  }
});

test("the lock names no registry", async () => {
  assert.ok(!(await text("package-lock.json")).includes('"resolved"'));
});
