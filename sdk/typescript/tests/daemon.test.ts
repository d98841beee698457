/**
 * A daemon with a snapshot `base`, whose guest only halts; and a sandbox with an agent, whose guest is this host.
 *
 * FORKD_TEST_DAEMON is where the daemon is, FORKD_TEST_SANDBOX the id of that sandbox.
 */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdir, mkdtemp, readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import * as forkd from "forkd";
import { Controller, Sandbox, Snapshot } from "forkd";

const address = process.env["FORKD_TEST_DAEMON"];
const agentId = process.env["FORKD_TEST_SANDBOX"] ?? "";
const skip = address ? false : "FORKD_TEST_DAEMON names no daemon";
const skipAgent = agentId ? skip : "FORKD_TEST_SANDBOX names no sandbox";
const controller = new Controller(address ? { address } : {});
const agent = () => Sandbox.connect(agentId, { controller });
const unique = (name: string) => `${name}-${randomUUID().slice(0, 8)}`;
const scratch = () => mkdtemp(join(tmpdir(), "forkd-"));

async function joined(pieces: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(piece);
  return Buffer.concat(all);
}

test("a life", { skip }, async () => {
  const word = unique("ts");
  await using base = await Sandbox.create("base", { metadata: { test: word }, controller });
  assert.ok(await base.isRunning());
  const listed: string[] = [];
  for await (const info of Sandbox.list({ metadata: { test: word }, controller })) listed.push(info.id);
  assert.deepEqual(listed, [base.id]);
  assert.equal((await base.pause()).state, "paused");
  assert.equal((await Sandbox.connect(base.id, { controller })).info.state, "running");
  assert.ok((await base.stats()).memory_shared_bytes >= 0);
  assert.equal(typeof (await base.logs()), "string");
  await base.setTimeout(null);
  assert.equal((await base.getInfo()).expires_at_unix ?? null, null);
  await base.setTimeout(50);
  await base.extendTimeout(10);
  assert.ok(((await base.getInfo()).expires_at_unix ?? 0) > Date.now() / 1000 + 30);
  assert.equal(await base.kill(), true);
  await assert.rejects(base.getInfo(), forkd.NotFoundError);
});

test("branches, forks and chains", { skip }, async () => {
  await using base = await Sandbox.create("base", { controller });
  const tag = unique("branch");
  const branch = await base.branch(tag, { wait: true });
  assert.equal(branch.info.branched_from, base.id);
  const children = [...(await branch.fork(3, { timeout: 60 })), ...(await base.fork(2, { timeout: 60 }))];
  assert.equal(new Set(children.map((child) => child.id)).size, 5);
  await base.rollback(branch);
  await assert.rejects(base.branch(tag), { name: "ConflictError", code: "name_taken" });
  await Promise.all(children.map((child) => child.kill()));
  assert.deepEqual(
    (await branch.history()).map((entry) => [entry.tag, entry.kind]),
    [
      ["base", "full"],
      [tag, "diff"],
    ],
  );
  assert.equal((await branch.verify()).intact, true);
  const name = unique("name");
  assert.deepEqual((await branch.addName(name)).names, [name]);
  await assert.rejects(controller.addSnapshotName("base", name), { name: "ConflictError", hint: /force: true/ });
  assert.equal((await Snapshot.get(name, { controller })).tag, tag);
  assert.deepEqual((await branch.removeName(name)).names ?? [], []);
  await base.kill();
  assert.deepEqual(await branch.delete(), [tag]);
});

test("builds", { skip }, async () => {
  const name = unique("built");
  const first = await Snapshot.build(name, { snapshot: "base", controller });
  assert.deepEqual([first.info.names, first.info.parent], [[name], "base"]);
  assert.equal((await Snapshot.build(name, { snapshot: "base", controller })).tag, first.tag);
  assert.deepEqual(await first.delete({ allNames: true }), [first.tag]);
});

test("archives", { skip }, async () => {
  const path = join(await scratch(), "base.tar");
  const tag = unique("loaded");
  await (await Snapshot.get("base", { controller })).save(path);
  const loaded = await Snapshot.load(path, tag, { controller });
  assert.deepEqual(await loaded.delete(), [tag]);
});

const registry = process.env["FORKD_TEST_REGISTRY"];
test("a registry", { skip: registry ? skip : "FORKD_TEST_REGISTRY names no registry" }, async () => {
  const [repository, tag] = [`${registry ?? ""}/typescript/app`, unique("pulled")];
  const base = await Snapshot.get("base", { controller });
  const pushed = await base.push(`${repository}:base`);
  assert.ok(pushed.sent_bytes > 0);
  assert.equal((await base.push(`${repository}:base`)).sent_bytes, 0);
  const { tags } = await Snapshot.listRepository(repository, { controller });
  assert.deepEqual(
    tags.map((one) => [one.tag, one.snapshot]),
    [["base", true]],
  );
  assert.ok(pushed.reference.includes((await controller.resolveSnapshot(`${repository}:base`)).digest));
  const pulled = await Snapshot.pull(`${repository}:base`, tag, { controller });
  const [child] = await pulled.fork(1, { timeout: 60 });
  await child?.kill();
  assert.deepEqual(await pulled.delete(), [tag]);
  await assert.rejects(Snapshot.pull(`${repository}:none`, undefined, { controller }), { code: "upstream_failed" });
});

test("refusals", { skip }, async () => {
  await assert.rejects(Sandbox.create("no-such-tag", { controller }), (error) => {
    assert.ok(error instanceof forkd.NotFoundError);
    return error.status === 404 && error.requestId !== undefined;
  });
  await using base = await Sandbox.create("base", { controller });
  await assert.rejects(base.fork(0), forkd.InvalidArgumentError);
  const agentless = await base.exec("true").catch((error: unknown) => error as forkd.ForkdError);
  assert.ok(agentless instanceof forkd.ForkdError);
  await assert.rejects(base.commands.run("true", { background: true }), { code: agentless.code });
  await assert.rejects(Snapshot.create("new", "no-such-image", { controller }), forkd.NotFoundError);
  await base.pause();
  await assert.rejects(base.commands.run("true", { background: true }), { code: "wrong_state" });
});

test("events", { skip }, async () => {
  const ending = new AbortController();
  const seen: string[] = [];
  const following = (async () => {
    for await (const event of controller.events({ signal: ending.signal })) {
      seen.push(event.event);
      if (event.event === "sandbox_removed" && seen.includes("sandbox")) return;
    }
  })();
  let isOver = false;
  void following.then(() => (isOver = true));
  while (!isOver) {
    const sandbox = await Sandbox.create("base", { controller });
    await sandbox.kill();
    await sleep(50);
  }
  await following;
});

test("the daemon", { skip }, async () => {
  assert.ok((await controller.health()).ok);
  assert.ok((await controller.version()).api);
  assert.match(await controller.metrics(), /forkd_/);
  assert.deepEqual(await controller.listImages(), []);
  assert.deepEqual(await controller.problems(), []);
  assert.ok(Array.isArray(await controller.listKernels()));
});

test("commands", { skip: skipAgent }, async () => {
  const box = await agent();
  const cwd = await scratch();
  const result = await box.commands.run("echo $COLOUR; pwd; cat; echo err >&2", {
    envs: { COLOUR: "blue" },
    cwd,
    stdin: "in\n",
  });
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], [`blue\n${cwd}\nin\n`, "err\n", 0]);
  await assert.rejects(box.commands.run("echo before; exit 7"), { name: "CommandExitError", exitCode: 7, stdout: "before\n" });
  const heard: string[] = [];
  await box.commands.run("echo one; sleep 0.4; echo two", { onStdout: (text) => heard.push(text) });
  assert.deepEqual(heard, ["one\n", "two\n"]);
  await assert.rejects(box.commands.run("sleep 30", { timeout: 1 }), forkd.CommandTimeoutError);
  await assert.rejects(box.commands.run("true", { cwd: "/no/such/directory" }), forkd.InvalidArgumentError);
  const large = await box.commands.run("head -c 5000000 /dev/zero | tr '\\0' x; printf '\\377' >&2");
  assert.deepEqual([large.stdout.length, large.stderr], [5_000_000, "�"]);
  assert.equal((await box.exec(["cat"], { stdin: "é" })).stdout, "é");
  assert.equal((await box.exec("sleep 30", { timeout: 1 })).timedOut, true);
  const numbers = [...Array(30).keys()];
  const many = await Promise.all(numbers.map((number) => box.commands.run(`sleep 0.2; echo ${number}`)));
  assert.deepEqual(
    many.map((one) => one.stdout),
    numbers.map((number) => `${number}\n`),
  );
});

test("commands in the background", { skip: skipAgent }, async () => {
  const box = await agent();
  const handle = await box.commands.run("read line; echo got $line; cat", { background: true, stdin: true });
  assert.ok(handle.pid > 0);
  await handle.sendStdin("it\n");
  await handle.sendStdin(Buffer.alloc(3_000_000, "x"));
  await handle.closeStdin();
  assert.equal((await handle.wait()).stdout.length, 7 + 3_000_000);
  const endless = await box.commands.run(["sleep", "60"], { background: true });
  assert.equal(await endless.kill(), true);
  assert.equal((await endless.ended()).exitCode, 137);
  const stubborn = await box.commands.run("exec sleep 60", { background: true, stdin: true });
  const sending = stubborn.sendStdin(Buffer.alloc(8_000_000)).catch(() => undefined);
  await sleep(300);
  await stubborn.kill();
  assert.equal((await stubborn.ended()).exitCode, 137);
  await sending;
  const shell = await box.commands.run(["/bin/sh"], { background: true, stdin: true, tty: { cols: 90, rows: 30 } });
  await shell.sendStdin("stty size; read wait; stty size; exit\n");
  let heard = "";
  for await (const { stdout } of shell) {
    heard += stdout ?? "";
    if (heard.includes("30 90")) break;
  }
  await shell.resize(100, 40);
  await shell.sendStdin("go\n");
  assert.match((await shell.wait()).stdout, /40 100/);
});

test("files", { skip: skipAgent }, async () => {
  const { files } = await agent();
  const root = await scratch();
  const path = `${root}/deep/new/file é.txt`;
  assert.equal((await files.write(path, "héllo\n")).size, 7);
  assert.equal(await files.read(path), "héllo\n");
  const large = Buffer.alloc(5_000_000, "y");
  await files.write(`${root}/large`, large);
  assert.ok((await joined(await files.read(`${root}/large`, "stream"))).equals(large));
  assert.deepEqual(
    (await files.list(root)).map((entry) => entry.name),
    ["deep", "large"],
  );
  assert.deepEqual([await files.makeDir(`${root}/a/b`), await files.makeDir(`${root}/a/b`)], [true, false]);
  assert.equal((await files.rename(path, `${root}/moved/there`)).name, "there");
  await files.remove(`${root}/moved`);
  assert.equal(await files.exists(`${root}/moved`), false);
  await assert.rejects(files.read(path), forkd.SandboxFileNotFoundError);
  await assert.rejects(files.read(root), forkd.FileError);
  await mkdir(`${root}/tree/below`, { recursive: true });
  await writeFile(`${root}/tree/below/${"x".repeat(110)}`, "text");
  await files.upload(`${root}/tree`, `${root}/copy`);
  assert.equal(await readFile(`${root}/copy/below/${"x".repeat(110)}`, "utf8"), "text");
  await files.writeArchive(`${root}/again`, await files.readArchive(`${root}/copy`));
  assert.equal(await files.exists(`${root}/again/copy/below/${"x".repeat(110)}`), true);
});

test("code", { skip: skipAgent }, async () => {
  const box = await agent();
  await box.eval("number = 20");
  assert.equal(await box.eval("number + 1"), "21");
  await assert.rejects(box.eval("1 / 0"), { name: "EvaluationError", exception: "ZeroDivisionError" });
  const execution = await box.runCode("print('é'); number");
  assert.deepEqual([execution.text, execution.logs.stdout], ["20", ["é\n"]]);
  assert.equal((await box.runCode("nothing")).error?.name, "NameError");
  assert.deepEqual((await box.runCode("echo $X", { language: "bash", envs: { X: "1" } })).logs.stdout, ["1\n"]);
  assert.equal((await controller.pingSandbox(box.id)).pong, true);
});

test("ports", { skip: skipAgent }, async () => {
  const box = await agent();
  const server = createServer((request, response) => response.writeHead(418).end(request.url)).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const answer = await box.fetch((server.address() as AddressInfo).port, "/a?b=c");
  assert.deepEqual([answer.status, await answer.text()], [418, "/a?b=c"]);
  server.close();
  server.closeAllConnections();
  const closed = await box.fetch(1);
  assert.deepEqual([closed.status, ((await closed.json()) as { code: string }).code], [502, "port_closed"]);
});
