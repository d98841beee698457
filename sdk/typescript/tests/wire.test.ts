/** What is sent, and what becomes of answers. */

import assert from "node:assert/strict";
import { chmod, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import * as forkd from "forkd";
import { Controller, Sandbox, Snapshot } from "forkd";
import { Watch } from "../src/transport.js";
import { answer, CREATED, clean, connected, Fake, ID, lines, refused, SANDBOX, SNAPSHOT } from "./fake.js";

async function sandboxOf(test: TestContext): Promise<[Fake, Sandbox, Controller]> {
  const [daemon, controller] = await connected(test);
  daemon.says(answer(SANDBOX));
  const sandbox = await Sandbox.connect(ID, { controller });
  daemon.asked.length = 0;
  return [daemon, sandbox, controller];
}

const base64 = (text: string | Uint8Array) => Buffer.from(text).toString("base64");
const exited = (exit_code: number) => ({ exited: { exit_code, timed_out: false } });

async function joined(pieces: AsyncIterable<Uint8Array>): Promise<string> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(piece);
  return Buffer.concat(all).toString();
}

test("a request shows who asks", async (t) => {
  const [daemon, controller] = await connected(t);
  daemon.says(answer(CREATED, 201));
  const sandbox = await Sandbox.create("base", { metadata: { a: "1" }, envs: { X: "é" }, controller });
  const [asked] = daemon.asked;
  assert.equal(asked?.line, "POST /v1/sandboxes");
  assert.deepEqual(asked.json, { snapshot_tag: "base", ttl_secs: 300, metadata: { a: "1" }, env: { X: "é" } });
  assert.equal(asked.headers.authorization, "Bearer secret");
  assert.match(asked.headers["user-agent"] ?? "", /^forkd-typescript\//);
  assert.equal(asked.headers["accept-encoding"], "identity");
  assert.equal(asked.headers["idempotency-key"]?.length, 36);
  assert.equal(sandbox.id, ID);
});

test("each code has its class", async (t) => {
  const [daemon, controller] = await connected(t, { retries: 0 });
  for (const [code, family] of Object.entries(forkd.FAMILIES)) {
    daemon.says(refused(418, code, "try again"));
    await assert.rejects(controller.getSandbox(ID), (error) => {
      assert.ok(error instanceof forkd.ForkdError);
      assert.equal(error.constructor, family);
      assert.deepEqual([error.code, error.status, error.requestId], [code, 418, "r1"]);
      assert.equal(error.hint, code === "unauthorized" ? forkd.TOKEN_HINT : "try again");
      assert.match(error.message, new RegExp(`it is ${code}`));
      return true;
    });
  }
  daemon.says(refused(418, "toString"));
  await assert.rejects(controller.version(), (error) => (error as Error).constructor === forkd.ForkdError);
});

test("families count their members", () => {
  const file = new forkd.SandboxFileNotFoundError("x");
  assert.ok(file instanceof forkd.FileError && file instanceof forkd.NotFoundError);
  assert.ok(!(file instanceof forkd.NotEnoughSpaceError));
  const late = new forkd.GuestTimeoutError("x");
  assert.ok(late instanceof forkd.GuestError && late instanceof forkd.TimedOutError);
  assert.ok(!(new forkd.ForkdError("x") instanceof forkd.FileError));
  assert.ok(new forkd.NotEnoughSpaceError("x") instanceof forkd.FileError);
});

test("hints are in words of this client", async (t) => {
  const [daemon, controller] = await connected(t);
  for (const [code, hint] of [
    ["list_sandboxes", forkd.HINTS["list_sandboxes"]],
    ["tea", "text"],
  ]) {
    daemon.says(refused(404, "not_found", "text", code));
    await assert.rejects(controller.getSandbox(ID), { hint, hintCode: code });
  }
});

test("what is not a daemon is found out", async (t) => {
  const [daemon, controller] = await connected(t);
  for (const body of ["<html>", "[]", "[".repeat(100_000), '{"error": 7', new Uint8Array([255]), ""]) {
    for (const status of [200, 302, 404]) {
      daemon.says({ status, body });
      await assert.rejects(controller.version(), forkd.ProtocolError);
    }
  }
});

test("options of new sandboxes", async (t) => {
  const [daemon, controller] = await connected(t);
  daemon.says(answer(CREATED, 201));
  const options = { timeout: 60, onExpiry: "pause", wakeOnTraffic: true, controller } as const;
  const body = { ttl_secs: 60, on_expiry: "pause", wake_on_traffic: true };
  const sandbox = await Sandbox.create("base", options);
  assert.deepEqual(daemon.last.json, { snapshot_tag: "base", ...body });
  await sandbox.fork(1, options);
  assert.deepEqual(daemon.last.json, { from_sandbox: ID, ...body });
  // A name that may be missing leaves the options as they are.
  await Sandbox.create(undefined, { ...options, template: "other" });
  assert.deepEqual(daemon.last.json, { snapshot_tag: "other", ...body });
});

test("what may be repeated is", async (t) => {
  const [daemon, controller] = await connected(t);
  const busy = refused(503, "unavailable");
  daemon.says({ cut: true }, busy, answer(CREATED, 201));
  await Sandbox.create("base", { controller });
  assert.equal(daemon.asked.length, 3);
  assert.equal(new Set(daemon.asked.map((asked) => asked.headers["idempotency-key"])).size, 1);
  daemon.says({ body: '{"ok"', cut: true }, answer({ ok: true }));
  assert.ok((await controller.health()).ok);
  daemon.says(busy);
  daemon.asked.length = 0;
  await assert.rejects(controller.health(), forkd.ServerError);
  assert.equal(daemon.asked.length, 3);
});

test("what may not be repeated is not", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  daemon.says(refused(503, "unavailable"));
  const once = [
    () => sandbox.exec("true"),
    () => sandbox.eval("1"),
    () => sandbox.runCode("1"),
    () => sandbox.rollback("x"),
    () => sandbox.files.write("/x", "x"),
    () => sandbox.commands.run("true"),
    () => sandbox.commands.start("true"),
    () => sandbox.commands.sendStdin(1, "x"),
    () => sandbox.commands.sendSignal(1, "SIGINT"),
    () => sandbox.contexts.create(),
  ];
  for (const ask of once) await assert.rejects(ask(), forkd.ServerError);
  assert.equal(daemon.asked.length, once.length);
  daemon.says(refused(429, "too_many"));
  await assert.rejects(sandbox.getInfo(), forkd.CapacityError);
  assert.equal(daemon.asked.length, once.length + 1);
});

test("no daemon, and one that says nothing", async (t) => {
  const [daemon, controller] = await connected(t, { timeout: 0.2 });
  daemon.says({ silent: true });
  await assert.rejects(controller.health(), forkd.RequestTimeoutError);
  assert.equal(daemon.asked.length, 1);
  for (const address of ["http://127.0.0.1:1", "unix:///nonexistent/forkd.sock"]) {
    await using nobody = new Controller({ address });
    await assert.rejects(nobody.health(), (error) => {
      assert.ok(error instanceof forkd.ConnectionFailedError);
      assert.match(error.message, /forkd serve/);
      return error.cause !== undefined;
    });
  }
});

/** A promise, and what fulfills it. */
function later(): [Promise<string>, (value: string) => void] {
  let fulfill: (value: string) => void = () => undefined;
  return [new Promise((resolve) => (fulfill = resolve)), fulfill];
}

async function until(holds: () => boolean): Promise<void> {
  for (let tries = 0; !holds(); tries++) {
    assert.ok(tries < 500, "not in time");
    await sleep(10);
  }
}

test("a connection that breaks leaves the others alone", async (t) => {
  const home = await mkdtemp(join(tmpdir(), "forkd-"));
  clean(t, { FORKD_HOME: home });
  const daemon = new Fake();
  await daemon.listen(join(home, "forkd.sock"));
  t.after(() => daemon.close());
  // A daemon that no name leads to is looked for again when it cannot be reached.
  const controller = new Controller({ timeout: 5, retries: 0 });
  t.after(() => controller.close());
  const [begun, end] = later();
  const [notBegun, begin] = later();
  daemon.says(
    { body: ['{"ok":'], last: begun },
    (asked) => (asked.line.includes("version") ? { cut: true } : { silent: true }),
    { body: [], last: notBegun },
    { cut: true },
    answer({ ok: true }),
  );
  const first = controller.health();
  await until(() => daemon.asked.length === 1);
  await assert.rejects(controller.version(), forkd.ConnectionFailedError);
  const second = controller.health();
  await until(() => daemon.asked.length === 3);
  await assert.rejects(controller.version(), forkd.ConnectionFailedError);
  assert.ok((await controller.health()).ok);
  end("true}");
  begin('{"ok":true}');
  assert.ok((await first).ok && (await second).ok);

  // Those of before end with the client, too.
  daemon.says({ body: ['{"ok":'], last: new Promise(() => undefined) }, { cut: true });
  daemon.asked.length = 0;
  const endless = controller.health();
  await until(() => daemon.asked.length === 1);
  await assert.rejects(controller.version(), forkd.ConnectionFailedError);
  const ended = assert.rejects(endless, forkd.ConnectionFailedError);
  await controller.close();
  await ended;
});

test("a reader may take its time, and stop", async (t) => {
  const [daemon, controller] = await connected(t, { timeout: 0.3, retries: 0 });
  const sandbox = new Sandbox(controller, SANDBOX as unknown as forkd.SandboxInfo);
  const [last, end] = later();
  daemon.says({ body: ["one"], last });
  const slow = await sandbox.files.read("f", "stream");
  const next = async () => Buffer.from((await slow.next()).value ?? []).toString();
  await sleep(500);
  assert.equal(await next(), "one");
  await sleep(500);
  end("two");
  assert.equal(await next(), "two");
  assert.equal((await slow.next()).done, true);
  // The daemon may not.
  daemon.says({ body: ["one"], last: new Promise(() => undefined) });
  const silent = await sandbox.files.read("f", "stream");
  await silent.next();
  await assert.rejects(silent.next(), forkd.RequestTimeoutError);
});

test("an answer that is not read ends its connection", async (t) => {
  const [daemon, controller] = await connected(t, { timeout: 60 });
  const sandbox = new Sandbox(controller, SANDBOX as unknown as forkd.SandboxInfo);
  daemon.says({ body: ["one"], last: new Promise(() => undefined) });
  const unread = await sandbox.files.read("f", "stream");
  assert.equal(daemon.connections, 1);
  await unread.return();
  await until(() => daemon.connections === 0);
  assert.equal((await unread.next()).done, true);
  // Also while it waits for the next piece.
  const waiting = await sandbox.files.read("f", "stream");
  await waiting.next();
  const next = waiting.next();
  await waiting.return();
  assert.equal((await next).done, true);
  await until(() => daemon.connections === 0);
});

test("what comes after a request's end does not start its time again", async () => {
  for (const end of ["stop", "release"] as const) {
    const watch = new Watch(0.02, new Set());
    watch[end]();
    watch.restart();
    await sleep(60);
    assert.equal(watch.signal.aborted, false, end);
  }
});

test("a signal ends what it was given to", async (t) => {
  const [daemon, sandbox, controller] = await sandboxOf(t);
  daemon.says({ silent: true });
  const asks = [
    (signal: AbortSignal) => controller.health({ signal }),
    (signal: AbortSignal) => sandbox.exec("x", { signal }),
    (signal: AbortSignal) => sandbox.runCode("x", { signal }),
    (signal: AbortSignal) => sandbox.files.write("/x", "x", { signal }),
    (signal: AbortSignal) => Snapshot.create("x", "y", { signal, controller }),
  ];
  for (const ask of asks) {
    const ending = new AbortController();
    const asked = ask(ending.signal);
    setTimeout(() => ending.abort(new Error("enough")), 20);
    await assert.rejects(asked, /enough/);
    await assert.rejects(ask(ending.signal), /enough/);
  }
  // Also while it waits to ask again.
  daemon.says(refused(503, "unavailable"));
  await assert.rejects(controller.health({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
  daemon.says(lines({ event: "sandbox_removed", id: ID, at_unix_ms: 1 }), { silent: true });
  const ending = new AbortController();
  await assert.rejects(async () => {
    for await (const event of controller.events({ after: "c", signal: ending.signal })) {
      assert.equal(event.event, "sandbox_removed");
      ending.abort(new Error("enough"));
    }
  }, /enough/);
});

test("output comes in pieces", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  const euro = Buffer.from("€");
  const said = ["one\n", euro.subarray(0, 1), euro.subarray(1), Buffer.from([255])];
  daemon.says(lines({ started: { pid: 7 } }, ...said.map((it) => ({ stdout: base64(it) })), { stderr: "IQ==" }, exited(3)));
  const heard: string[] = [];
  const result = await sandbox.exec(["tool", "x"], { onStdout: (text) => heard.push(text), timeout: 0.5 });
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ["one\n€�", "!", 3]);
  assert.deepEqual(heard, ["one\n", "€", "�"]);
  assert.deepEqual(daemon.last.json, { args: ["tool", "x"], timeout_secs: 1 });
  assert.equal(daemon.last.headers.accept, "application/x-ndjson");
});

test("output without an end", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  for (const [event, kind] of [
    [{ error: { error: "gone", code: "guest_failed" } }, forkd.GuestError],
    [{ started: { pid: 7 } }, forkd.ConnectionFailedError],
    [{ stdout: "no base64" }, forkd.ProtocolError],
    ["word", forkd.ProtocolError],
  ] as const) {
    daemon.says(lines(event));
    await assert.rejects(sandbox.commands.run("x"), kind);
  }
});

test("a command that fails", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  const ended = { stdout: "", stderr: "a\nno such file\n", exit_code: 2, timed_out: false, truncated: false };
  daemon.says(answer(ended));
  assert.equal((await sandbox.exec("x")).exitCode, 2);
  await assert.rejects(sandbox.exec("x", { check: true }), { name: "CommandExitError", exitCode: 2, message: /no such file/ });
  daemon.says(answer({ ...ended, timed_out: true }));
  await assert.rejects(sandbox.exec("x", { check: true }), { name: "CommandTimeoutError", message: /within 30 s/ });
  for (const [timeout, expected] of [
    [0, 86400],
    [null, 86400],
    [0.1, 1],
    [30.5, 31],
    [1e9, 86400],
  ] as const) {
    await sandbox.exec("x", { timeout });
    assert.equal((daemon.last.json as { timeout_secs: number }).timeout_secs, expected);
  }
});

test("await using removes a sandbox", async (t) => {
  const [daemon, controller] = await connected(t);
  daemon.says(answer(CREATED, 201), { status: 204 });
  {
    await using sandbox = await Sandbox.create("base", { controller });
    assert.equal(sandbox.id, ID);
  }
  assert.equal(daemon.last.line, `DELETE /v1/sandboxes/${ID}`);
});

test("forks of sandboxes and of snapshots are one request", async (t) => {
  const [daemon, sandbox, controller] = await sandboxOf(t);
  daemon.says(answer({ ...CREATED, sandboxes: [SANDBOX, SANDBOX] }, 201));
  const options = { timeout: 60, limits: { memory_mib: 64 } };
  const snapshot = new Snapshot(controller, SNAPSHOT as unknown as forkd.SnapshotInfo);
  for (const [from, source] of [
    [sandbox, { from_sandbox: ID }],
    [snapshot, { snapshot_tag: "base" }],
  ] as const) {
    assert.equal((await from.fork(2, options)).length, 2);
    assert.deepEqual(daemon.last.json, { ...source, n: 2, ttl_secs: 60, limits: { memory_mib: 64 } });
  }
});

test("progress is told", async (t) => {
  const [daemon, controller] = await connected(t);
  const heard: unknown[] = [];
  daemon.says(lines({ step: "boot" }, { output: "warm" }, { snapshot: SNAPSHOT }));
  const onProgress = (told: object) => heard.push(...(Object.values(told) as unknown[]));
  const made = await Snapshot.create("base", "debian", { warmUp: "import numpy", onProgress, controller });
  assert.equal(made.tag, "base");
  assert.deepEqual(heard, ["boot", "warm"]);
  const { warm_up } = daemon.last.json as { warm_up: unknown };
  assert.deepEqual(warm_up, [{ code: "import numpy", language: "python" }]);
  daemon.says(lines({ step: "boot" }, { error: { error: "no such image", code: "not_found" } }));
  await assert.rejects(Snapshot.create("x", "y", { controller }), { name: "NotFoundError", requestId: "r2" });
  daemon.says(lines({ step: "boot" }));
  await assert.rejects(Snapshot.create("x", "y", { controller }), /before its last line/);
  daemon.says(lines({ image: {} }));
  await assert.rejects(Snapshot.create("x", "y", { controller }), /has no snapshot/);
  daemon.says(lines({ built: { snapshot: SNAPSHOT, outcome: "made", key: "k" } }));
  const base = await Snapshot.build("app", { snapshot: made, run: ["true"], controller });
  assert.equal(base.tag, "base");
  assert.deepEqual(daemon.last.json, { name: "app", contents: { snapshot: "base", run: ["true"] } });
});

test("a snapshot goes through a file", async (t) => {
  const [daemon, controller] = await connected(t);
  const directory = await mkdtemp(join(tmpdir(), "forkd-"));
  const path = join(directory, "base.tar");
  const snapshot = new Snapshot(controller, SNAPSHOT as unknown as forkd.SnapshotInfo);
  daemon.says({ body: ["one ", "two"] });
  await snapshot.save(path);
  assert.deepEqual([daemon.last.line, daemon.last.headers.accept], ["GET /v1/snapshots/base/archive", "application/x-tar"]);
  assert.equal(await readFile(path, "utf8"), "one two");
  assert.equal(await joined(await snapshot.archive()), "one two");
  // It has the memory of a guest: it is for its owner, whatever was left under its names before.
  const mode = async () => (await stat(path)).mode & 0o777;
  assert.equal(await mode(), 0o600);
  const other = join(directory, "other");
  await writeFile(other, "other");
  await chmod(path, 0o644);
  await symlink(other, `${path}.part`);
  await snapshot.save(path);
  assert.deepEqual([await mode(), await readFile(path, "utf8"), await readFile(other, "utf8")], [0o600, "one two", "other"]);
  await rm(other);
  // A transfer that breaks leaves what was there.
  daemon.says({ body: "three", cut: true });
  await assert.rejects(snapshot.save(path), forkd.ConnectionFailedError);
  assert.deepEqual([await readFile(path, "utf8"), await readdir(directory)], ["one two", ["base.tar"]]);
  for (const archive of [path, Buffer.from("one two"), [Buffer.from("one "), Buffer.from("two")], new Blob(["one two"])]) {
    daemon.says(lines({ step: "reading the archive" }, { snapshot: SNAPSHOT }));
    assert.equal((await Snapshot.load(archive, "other", { controller })).tag, "base");
    assert.deepEqual([daemon.last.line, daemon.last.body.toString()], ["POST /v1/snapshots/load?tag=other", "one two"]);
    assert.equal(daemon.last.headers["content-type"], "application/octet-stream");
  }
});

test("a snapshot goes through a registry", async (t) => {
  const [daemon, controller] = await connected(t);
  const reference = "registry.example/team/app:warm";
  const credentials = { username: "me", password: "secret" };
  daemon.says(lines({ transfer: { done_bytes: 1, total_bytes: 4 } }, { snapshot: SNAPSHOT }));
  const snapshot = await Snapshot.pull(reference, undefined, { reuse: true, credentials, controller });
  assert.deepEqual(daemon.last.json, { reference, reuse: true, credentials });
  daemon.says(lines({ step: "pushing" }, { pushed: { reference, sent_bytes: 5, present_bytes: 6 } }));
  assert.equal((await snapshot.push(reference, { yes: true, mountFrom: ["team/base"] })).sent_bytes, 5);
  assert.deepEqual(daemon.last.json, { reference, yes: true, mount_from: ["team/base"] });
  daemon.says(lines({ pushed: { reference, sent_bytes: 5, present_bytes: 6 } }));
  await snapshot.push(reference, { variant: "v3" });
  assert.deepEqual(daemon.last.json, { reference, variant: "v3" });
  daemon.says(answer({ repository: "registry.example/team/app", tags: [], truncated: false }));
  assert.deepEqual((await Snapshot.listRepository("registry.example/team/app", { controller })).tags, []);
});

test("a directory is sent to be built", async (t) => {
  const [daemon, controller] = await connected(t);
  const directory = await mkdtemp(join(tmpdir(), "forkd-"));
  const long = "x".repeat(120);
  await writeFile(join(directory, "Dockerfile"), "FROM base\n");
  await writeFile(join(directory, long), "long");
  daemon.says(lines({ step: "RUN" }, { image: { id: "1", names: ["app"] } }));
  assert.deepEqual((await controller.buildImage(directory, { name: "app" })).names, ["app"]);
  assert.deepEqual(
    [daemon.last.line, daemon.last.headers["content-type"]],
    ["POST /v1/images/build?name=app", "application/x-tar"],
  );
  const tar = join(directory, "sent.tar");
  await writeFile(tar, daemon.last.body);
  const { execFileSync } = await import("node:child_process");
  const listed = execFileSync("tar", ["-tvf", tar, "--numeric-owner"], { encoding: "utf8" });
  assert.deepEqual(
    listed
      .trim()
      .split("\n")
      .map((line) => line.split(/\s+/).at(-1))
      .sort(),
    ["./", "./Dockerfile", `./${long}`],
  );
  assert.match(listed, /0\/0/);
});

test("code has results", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  const failed = { name: "NameError", value: "x", traceback: "…" };
  daemon.says(
    lines(
      { stdout: "out" },
      { stderr: "err" },
      { result: { data: { "image/png": "AAAA" }, main: false } },
      { result: { data: { "text/plain": "7", "application/json": "7" }, main: true } },
      { ended: { timed_out: false, truncated: false } },
    ),
  );
  const heard: string[] = [];
  const execution = await sandbox.runCode("x", {
    onStdout: (text) => heard.push(text),
    onResult: (result) => heard.push(Object.keys(result.formats)[0] ?? ""),
  });
  assert.deepEqual(heard, ["out", "image/png", "text/plain"]);
  assert.deepEqual([execution.text, execution.logs.stderr, execution.error], ["7", ["err"], undefined]);
  assert.deepEqual([execution.results[0]?.png, execution.results[1]?.json], ["AAAA", 7]);
  daemon.says(lines({ raised: failed }, { ended: { timed_out: false, truncated: false } }));
  assert.equal((await sandbox.runCode("x")).error?.name, "NameError");
  daemon.says(lines({ stdout: "before" }, { ended: { timed_out: true, truncated: false } }));
  await assert.rejects(sandbox.runCode("x"), (error) => {
    assert.ok(error instanceof forkd.EvaluationTimeoutError && error instanceof forkd.GuestTimeoutError);
    assert.deepEqual(error.execution.logs.stdout, ["before"]);
    return true;
  });
  daemon.says(lines({ stdout: "before" }));
  await assert.rejects(sandbox.runCode("x"), forkd.ConnectionFailedError);
  // A daemon that does not stream code.
  const whole = { results: [], stdout: "out", stderr: "", truncated: false };
  daemon.says(answer({ ...whole, result: "7" }));
  heard.length = 0;
  assert.equal((await sandbox.runCode("x", { onStdout: (text) => heard.push(text) })).text, "7");
  assert.deepEqual(heard, ["out"]);
  assert.equal(await sandbox.eval("x"), "7");
  daemon.says(answer({ ...whole, error: failed }));
  await assert.rejects(sandbox.eval("x"), { name: "EvaluationError", message: "NameError: x" });
  daemon.says(answer({ ...whole, timed_out: true }));
  await assert.rejects(sandbox.eval("x"), forkd.EvaluationTimeoutError);
});

test("contexts and processes", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  const context = { id: "c1", language: "python", cwd: "/", busy: false };
  daemon.says(answer([context]));
  assert.deepEqual(await sandbox.contexts.list(), [context]);
  daemon.says(answer(context, 201));
  const made = await sandbox.contexts.create({ cwd: "/srv" });
  assert.deepEqual(daemon.last.json, { language: "python", cwd: "/srv" });
  daemon.says(answer({ restarted: true }));
  assert.equal(await sandbox.contexts.interrupt(made, { grace: 1 }), true);
  assert.deepEqual([daemon.last.line, daemon.last.json], [`POST /v1/sandboxes/${ID}/contexts/c1/interrupt`, { grace_secs: 1 }]);
  daemon.says({ status: 204 });
  await sandbox.contexts.restart("c1");
  await sandbox.contexts.remove(made);
  assert.equal(daemon.last.line, `DELETE /v1/sandboxes/${ID}/contexts/c1`);
  daemon.says(answer([{ pid: 7, args: ["sleep"], tty: false }]));
  assert.equal((await sandbox.commands.list())[0]?.pid, 7);
  daemon.says(answer({ pid: 8 }, 201));
  assert.equal(await sandbox.commands.start(["sleep", "9"], { cwd: "/" }), 8);
  assert.deepEqual(daemon.last.json, { args: ["sleep", "9"], cwd: "/" });
  daemon.says({ status: 204 });
  await sandbox.commands.sendStdin(8, "é");
  assert.deepEqual([daemon.last.line, daemon.last.body.toString()], [`POST /v1/sandboxes/${ID}/processes/8/stdin`, "é"]);
  await sandbox.commands.closeStdin(8);
  assert.equal(daemon.last.line, `POST /v1/sandboxes/${ID}/processes/8/stdin?close=true`);
  assert.equal(await sandbox.commands.kill(8), true);
  assert.deepEqual(daemon.last.json, { signal: "SIGKILL" });
  daemon.says(refused(404, "not_found"));
  assert.equal(await sandbox.commands.kill(8), false);
  await assert.rejects(sandbox.commands.list({}), forkd.NotFoundError);
});

test("files go as they are", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  const info = { name: "f", path: "/a b/f", kind: "file", size: 1, mode: 420, owner: "u", group: "u", modified_unix: 1 };
  daemon.says((asked) => (asked.line.startsWith("PUT") ? { status: 204 } : answer(info)));
  const large = Buffer.alloc(600_000, "x");
  for (const content of ["é", new Uint8Array([255, 0]), large, [Buffer.from("1"), Buffer.from("2")]]) {
    await sandbox.files.write("/a b/f", content, { user: "u" });
  }
  const sent = daemon.asked.filter((asked) => asked.line.startsWith("PUT"));
  assert.deepEqual(
    sent.map((asked) => asked.body),
    [Buffer.from("é"), Buffer.from([255, 0]), large, Buffer.from("12")],
  );
  assert.equal(sent[0]?.line, `PUT /v1/sandboxes/${ID}/files?path=%2Fa%20b%2Ff&user=u`);
  daemon.says({ body: [Buffer.from("h\xc3", "latin1"), Buffer.from("\xa9", "latin1")] });
  assert.equal(await sandbox.files.read("f"), "hé");
  assert.deepEqual(Buffer.from(await sandbox.files.read("f", "bytes")), Buffer.from("hé"));
  assert.equal(await joined(await sandbox.files.read("f", "stream")), "hé");
  daemon.says(refused(404, "file_not_found"));
  assert.equal(await sandbox.files.exists("f"), false);
  // A sandbox that does not exist is no answer to that.
  daemon.says(refused(404, "not_found"));
  await assert.rejects(sandbox.files.exists("f"), forkd.NotFoundError);
  assert.equal(await sandbox.kill(), false);
  assert.equal(await sandbox.isRunning(), false);
});

test("directories come in pages", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  const page = (names: string[], next?: string) => answer({ files: names.map((name) => ({ name })), truncated: !!next, next });
  daemon.says(page(["a", "b"], "b"), page(["c"]));
  assert.deepEqual(
    (await sandbox.files.list("/d")).map((file) => file.name),
    ["a", "b", "c"],
  );
  assert.deepEqual(
    daemon.asked.map((asked) => asked.line.split("?")[1]),
    ["path=%2Fd", "path=%2Fd&after=b"],
  );
  daemon.says(page(["a", "b"], "b"));
  assert.equal((await sandbox.files.list("/d", { limit: 3 })).length, 3);
});

test("lists come in pages", async (t) => {
  const [daemon, controller] = await connected(t);
  daemon.says(answer({ sandboxes: [SANDBOX, { ...SANDBOX, state: "ended" }], next: "n" }), answer({ sandboxes: [SANDBOX] }));
  const ids: string[] = [];
  for await (const info of Sandbox.list({ metadata: { a: "1", b: "2" }, limit: 2, controller })) ids.push(info.id);
  assert.deepEqual(ids, [ID, ID]);
  assert.deepEqual(
    daemon.asked.map((asked) => asked.line),
    ["GET /v1/sandboxes?metadata=a%3D1&limit=2", "GET /v1/sandboxes?metadata=a%3D1&limit=2&after=n"],
  );
});

test("connecting only extends the time", async (t) => {
  const [daemon, controller] = await connected(t);
  daemon.says(answer({ ...SANDBOX, expires_at_unix: 2 ** 40 }));
  await Sandbox.connect(ID, { timeout: 60, controller });
  assert.equal(daemon.asked.length, 2);
  daemon.asked.length = 0;
  daemon.says(answer({ ...SANDBOX, state: "paused", expires_at_unix: 1 }));
  await Sandbox.connect(ID, { timeout: 60, controller });
  assert.deepEqual(
    daemon.asked.map((asked) => asked.line.split("/").at(-1)),
    [ID, "resume", ID, "ttl"],
  );
  assert.deepEqual(daemon.last.json, { ttl_secs: 60 });
});

test("names do not lead elsewhere", async (t) => {
  const [daemon, controller] = await connected(t);
  daemon.says(refused(404, "not_found"));
  await assert.rejects(controller.getSandbox("../snapshots?x=#é"), forkd.NotFoundError);
  assert.equal(daemon.last.line, "GET /v1/sandboxes/..%2Fsnapshots%3Fx%3D%23%C3%A9");
  for (const name of ["", ".", ".."]) assert.throws(() => controller.getSnapshot(name), forkd.InvalidArgumentError);
});

test("ports have addresses", async (t) => {
  const [daemon, sandbox] = await sandboxOf(t);
  assert.equal(await sandbox.proxyUrl(8000, "/a?b=c"), `${daemon.address}/v1/sandboxes/${ID}/proxy/8000/a?b=c`);
  daemon.says({ status: 404, body: "the guest's own", headers: { x: "y" } });
  const got = await sandbox.fetch(8000, "/a", { method: "POST", body: "body", headers: { k: "v" } });
  assert.deepEqual([got.status, await got.text(), got.headers.get("x")], [404, "the guest's own", "y"]);
  assert.deepEqual([daemon.last.body.toString(), daemon.last.headers["k"]], ["body", "v"]);
  await assert.rejects(sandbox.proxyUrl(0), forkd.InvalidArgumentError);
  const other = new Sandbox(new Controller({ address: "unix:///x" }), sandbox.info);
  await assert.rejects(other.proxyUrl(80), /fetch/);
});

test("events continue where they were", async (t) => {
  const [daemon, controller] = await connected(t);
  const event = (cursor: string) => ({ event: "sandbox_removed", id: ID, at_unix_ms: 1, cursor });
  daemon.says(lines(event("1")), { ...lines(event("2")), cut: true }, { cut: true }, lines(event("3")), { silent: true });
  const seen: (string | undefined)[] = [];
  for await (const told of controller.events({ sandbox: [ID, "other"], event: "sandbox_removed" })) {
    seen.push(told.cursor);
    if (seen.length === 3) break;
  }
  assert.deepEqual(seen, ["1", "2", "3"]);
  const filter = `sandbox=${ID}&sandbox=other&event=sandbox_removed`;
  assert.deepEqual(
    daemon.asked.map((asked) => asked.line.split("?")[1]),
    [filter, `after=1&${filter}`, `after=2&${filter}`, `after=2&${filter}`],
  );
  // Without cursors, the end is the end.
  daemon.says(lines({ event: "sandbox_removed", id: ID, at_unix_ms: 1 }));
  let count = 0;
  for await (const told of controller.events()) count += told.at_unix_ms;
  assert.equal(count, 1);
});

test("events end without any event", async (t) => {
  const [daemon, controller] = await connected(t);
  const event = lines({ event: "sandbox_removed", id: ID, at_unix_ms: 1, cursor: "1" });
  for (const dropped of [lines(), { body: " ", cut: true }]) {
    // The last event counts, and not that the daemon has answered.
    daemon.asked.length = 0;
    daemon.says(event, dropped, event, dropped);
    let seen = 0;
    await assert.rejects(async () => {
      for await (const told of controller.events()) seen += told.at_unix_ms;
    }, forkd.ConnectionFailedError);
    assert.deepEqual([seen, daemon.asked.length], [2, 5]);
  }
  const once = new Controller({ address: daemon.address, token: "secret", retries: 0 });
  t.after(() => once.close());
  await assert.rejects(once.events({ after: "1" }).next(), forkd.ConnectionFailedError);
  assert.equal(daemon.asked.length, 6);
});

test("what was removed a moment ago is removed", async (t) => {
  const [daemon, sandbox, controller] = await sandboxOf(t);
  daemon.says({ status: 204 });
  assert.equal(await sandbox.kill(), true);
  assert.deepEqual(await controller.deleteSnapshot("base"), []);
  assert.equal(await controller.removeImage("base"), undefined);
});
