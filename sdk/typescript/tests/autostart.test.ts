/** A daemon of one's own: which helper is started, what it may say, and how long it is held. The helper is a script. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { chmod, mkdtemp, rename, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { Controller, type ControllerOptions, Sandbox, type SandboxInfo } from "forkd";
import { shared } from "../src/autostart.js";
import { ConnectionFailedError, InvalidArgumentError, ProtocolError } from "../src/errors.js";
import { answer, clean, CREATED, Fake, SANDBOX } from "./fake.js";

/** A helper that says what it is told to, and notes when its stdin ends. */
class Script {
  constructor(readonly directory: string) {}

  get path(): string {
    return join(this.directory, "forkd");
  }

  get notes(): string[] {
    const file = join(this.directory, "notes");
    return existsSync(file) ? readFileSync(file, "utf8").trim().split("\n") : [];
  }

  get pid(): number {
    return Number(this.notes.at(-1)?.split(" ")[1]);
  }

  async write(before: string): Promise<void> {
    const notes = join(this.directory, "notes");
    const text = `#!/bin/sh\necho "start $$ $*" >>"${notes}"\n${before}\ncat >/dev/null\necho "end $$" >>"${notes}"\n`;
    // A shell may still be reading the one before.
    const made = `${this.path}.new`;
    await writeFile(made, text);
    await chmod(made, 0o755);
    await rename(made, this.path);
  }

  says(line: object): Promise<void> {
    return this.write(`echo '${JSON.stringify(line)}'`);
  }
}

async function until(holds: () => boolean): Promise<void> {
  const ends = performance.now() + 20_000;
  while (!holds()) {
    assert.ok(performance.now() < ends, "not in time");
    await sleep(10);
  }
}

async function prepared(t: TestContext): Promise<[Script, Fake]> {
  const directory = await mkdtemp(join(tmpdir(), "forkd-"));
  clean(t, { FORKD_BIN: join(directory, "forkd"), FORKD_HOME: directory });
  const daemon = new Fake();
  await daemon.listen();
  t.after(() => daemon.close());
  daemon.says(answer({ ok: true }));
  const script = new Script(directory);
  await script.says({ url: daemon.address, token: "own", private: true });
  return [script, daemon];
}

/** One request of a client that is gone then. */
async function ask(options: ControllerOptions): Promise<void> {
  await using controller = new Controller({ retries: 0, ...options });
  await controller.health();
}

test("the first request starts it, and the end of the client ends it", async (t) => {
  const [script, daemon] = await prepared(t);
  const controller = new Controller({ autostart: true });
  assert.equal(script.notes.length, 0);
  await Promise.all([controller.health(), controller.health()]);
  assert.equal(script.notes.length, 1);
  assert.match(String(script.notes.at(-1)), / hold$/);
  assert.equal(String(await controller.address()), daemon.address);
  assert.ok(daemon.asked.every((asked) => asked.headers.authorization === "Bearer own"));
  await controller.close();
  await until(() => script.notes.length === 2);
  await controller.health();
  assert.equal(script.notes.length, 3);
  await controller.close();
});

test("it is started only if it is asked for and no daemon is named", async (t) => {
  const [script, daemon] = await prepared(t);
  for (const value of [undefined, "", "0", "no"]) {
    if (value !== undefined) process.env["FORKD_AUTOSTART"] = value;
    assert.match(String(await new Controller().address()), /^unix:/);
  }
  process.env["FORKD_AUTOSTART"] = "1";
  await ask({ address: daemon.address });
  process.env["FORKD_URL"] = daemon.address;
  await ask({ autostart: true });
  assert.deepEqual(script.notes, []);
  delete process.env["FORKD_URL"];
  process.env["FORKD_AUTOSTART"] = "perhaps";
  assert.throws(() => new Controller(), InvalidArgumentError);
});

test("a daemon that was there is not held", async (t) => {
  const [script, daemon] = await prepared(t);
  process.env["FORKD_TOKEN"] = "usual";
  await script.says({ url: daemon.address, private: false });
  await using controller = new Controller({ autostart: true });
  await controller.health();
  await until(() => script.notes.length === 2);
  await controller.health();
  assert.equal(script.notes.length, 2);
  assert.ok(daemon.asked.every((asked) => asked.headers.authorization === "Bearer usual"));
});

test("a helper that is gone is started again", async (t) => {
  const [script] = await prepared(t);
  await using controller = new Controller({ autostart: true });
  await controller.health();
  process.kill(script.pid, "SIGKILL");
  await until(() => {
    void controller.health().catch(() => undefined);
    return script.notes.length === 2;
  });
  await controller.health();
});

test("an answer that breaks is told as such, and starts nothing", async (t) => {
  const [script, daemon] = await prepared(t);
  await using controller = new Controller({ autostart: true, retries: 0 });
  const sandbox = new Sandbox(controller, SANDBOX as unknown as SandboxInfo);
  daemon.says({ body: ["piece"], cut: true });
  const pieces = await sandbox.files.read("/f", "stream");
  process.kill(script.pid, "SIGKILL");
  await script.write("echo nothing");
  await sleep(200);
  await assert.rejects(async () => {
    for await (const piece of pieces) assert.equal(Buffer.from(piece).toString(), "piece");
  }, /connection to the daemon broke/);
  assert.equal(script.notes.length, 1);
});

test("what it says instead", async (t) => {
  const [script] = await prepared(t);
  await script.says({ error: "there is no KVM", hint: "get one" });
  await assert.rejects(ask({ autostart: true }), (error) => {
    assert.ok(error instanceof ConnectionFailedError);
    assert.equal(error.hint, "get one");
    return error.message.startsWith("there is no KVM");
  });
  for (const [before, kind, said] of [
    ["exit 7", ConnectionFailedError, /status 7/],
    ["echo nothing", ProtocolError, /not a line of JSON/],
    ["echo []", ProtocolError, /not a line of JSON/],
    ["echo '{}'", ProtocolError, /url/],
    ["head -c 100000 /dev/zero", ProtocolError, /too long/],
  ] as const) {
    await script.write(before);
    await assert.rejects(ask({ autostart: true }), (error) => error instanceof kind && said.test(error.message));
  }
});

test("a caller who wants no more of it does not wait", async (t) => {
  const [script] = await prepared(t);
  await script.write("sleep 1");
  const controller = new Controller({ autostart: true });
  await assert.rejects(controller.health({ signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  await controller.close();
  await until(() => script.notes.length === 2);
});

test("without the program it says so", async (t) => {
  await prepared(t);
  process.env["FORKD_BIN"] = "/no/such/program";
  await assert.rejects(ask({ autostart: true }), /\/no\/such\/program, which is no program/);
  delete process.env["FORKD_BIN"];
  process.env["PATH"] = "/no/such/directory";
  await assert.rejects(ask({ autostart: true }), /no program forkd on PATH .*FORKD_BIN/);
});

test("sandboxes share one helper", async (t) => {
  const [script, daemon] = await prepared(t);
  process.env["FORKD_AUTOSTART"] = "1";
  daemon.says(answer(CREATED, 201), answer(CREATED, 201), answer(SANDBOX));
  const [first] = [await Sandbox.create("base"), await Sandbox.create("base")];
  await first.controller.close();
  await first.getInfo();
  assert.equal(script.notes.length, 1);
  await first.controller.close();
  shared(undefined).end();
  await until(() => script.notes.length === 2);
});

/** The command of a client that asks once and then does this. */
async function client(directory: string, rest: string): Promise<string[]> {
  const forkd = new URL("../src/index.js", import.meta.url).href;
  const file = join(directory, "client.mjs");
  const text = `import { Controller } from ${JSON.stringify(forkd)};
await new Controller({ autostart: true }).health();
${rest}`;
  await writeFile(file, text);
  return "Deno" in globalThis ? ["run", "--allow-all", "--quiet", file] : [file];
}

test("a stream that is given up keeps no process alive", async (t) => {
  const [script, daemon] = await prepared(t);
  daemon.says(answer({ ok: true }), answer(SANDBOX), { body: ["piece"], last: new Promise(() => undefined) });
  const rest = `const { Sandbox } = await import(${JSON.stringify(new URL("../src/index.js", import.meta.url).href)});
const { files } = await Sandbox.connect("x", { controller: new Controller({ address: "${daemon.address}" }) });
await (await files.read("f", "stream")).return();`;
  await promisify(execFile)(process.execPath, await client(script.directory, rest), { timeout: 30_000 });
});

test("it keeps no process alive, and ends with it", async (t) => {
  const [script] = await prepared(t);
  await promisify(execFile)(process.execPath, await client(script.directory, ""), { timeout: 30_000 });
  await until(() => script.notes.length === 2);
  const killed = spawn(process.execPath, await client(script.directory, "setInterval(() => {}, 1000);"));
  await until(() => script.notes.length === 3);
  await sleep(200);
  killed.kill("SIGKILL");
  await until(() => script.notes.length === 4);
});
