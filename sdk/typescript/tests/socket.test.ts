/** Programs in the background over WebSockets, and daemons behind Unix sockets. */

import assert from "node:assert/strict";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import * as forkd from "forkd";
import { Controller, Sandbox, type SandboxInfo } from "forkd";
import { answer, clean, Fake, ID, type Peer, refused, SANDBOX } from "./fake.js";

/** A fake daemon behind TCP or behind a Unix socket, and a sandbox of it. */
async function sandboxAt(t: TestContext, isUnix: boolean): Promise<[Fake, Sandbox]> {
  clean(t);
  const daemon = new Fake();
  await daemon.listen(isUnix ? join(await mkdtemp(join(tmpdir(), "forkd-")), "s") : 0);
  const controller = new Controller({ address: daemon.address, token: "secret", timeout: 5, retries: 0 });
  t.after(async () => {
    await controller.close();
    await daemon.close();
  });
  return [daemon, new Sandbox(controller, SANDBOX as unknown as SandboxInfo)];
}

const exited = (exit_code: number, timed_out = false) => ({ exited: { exit_code, timed_out } });
const out = (text: string, stream = 1) => Buffer.concat([Buffer.from([stream]), Buffer.from(text)]);

/** A program that says what it reads, and ends with its input. */
function cat(peer: Peer): void {
  let hasStarted = false;
  peer.onMessage = (message) => {
    if (!hasStarted) {
      hasStarted = true;
      peer.send({ started: { pid: 7 } });
    } else if (typeof message !== "string") {
      peer.send(out(message.toString()));
      peer.send({ stdin_taken: { bytes: message.length } });
    } else if (message === '"close_stdin"') {
      peer.send(exited(0));
    } else if (message.includes("SIGKILL")) {
      peer.send(exited(137));
    }
  };
}

for (const isUnix of [false, true]) {
  const at = isUnix ? "a Unix socket" : "TCP";

  test(`requests over ${at}`, async (t) => {
    const [daemon, sandbox] = await sandboxAt(t, isUnix);
    daemon.says(answer(SANDBOX));
    assert.equal((await sandbox.getInfo()).id, ID);
    // Deno's client takes a Unix socket for a proxy, which is asked with whole URLs.
    assert.equal(daemon.last.line.replace("http://localhost", ""), `GET /v1/sandboxes/${ID}`);
    assert.equal(daemon.last.headers.authorization, "Bearer secret");
  });

  test(`a program that is talked to over ${at}`, async (t) => {
    const [daemon, sandbox] = await sandboxAt(t, isUnix);
    daemon.onSocket = (peer, asked) => {
      assert.equal(asked.headers.authorization, "Bearer secret");
      cat(peer);
    };
    const handle = await sandbox.commands.run("cat", { background: true, stdin: true });
    assert.equal(handle.pid, 7);
    await handle.sendStdin("héllo ");
    await handle.sendStdin(Buffer.alloc(3_000_000, "x"));
    await handle.closeStdin();
    const result = await handle.wait();
    assert.equal(result.stdout.length, 6 + 3_000_000);
    assert.equal(await handle.kill(), false);
  });
}

test("output in order, and its end", async (t) => {
  const [daemon, sandbox] = await sandboxAt(t, false);
  daemon.onSocket = (peer) => {
    peer.onMessage = (message) => {
      if (message === '"close_stdin"') return;
      assert.deepEqual(JSON.parse(String(message)), { args: ["/bin/sh", "-c", "x"], timeout_secs: 5, env: { A: "1" } });
      for (const said of [{ started: { pid: 7 } }, out("a"), out("b", 2), out("€".slice(0)), exited(3)]) peer.send(said);
    };
  };
  const handle = await sandbox.commands.run("x", { background: true, timeout: 5, envs: { A: "1" } });
  const told: forkd.Output[] = [];
  for await (const output of handle) told.push(output);
  assert.deepEqual(told, [{ stdout: "a" }, { stderr: "b" }, { stdout: "€" }]);
  assert.equal(handle.exitCode, 3);
  await assert.rejects(handle.wait(), { name: "CommandExitError", exitCode: 3, stderr: "b" });
});

test("a long stdin goes in messages of its own", async (t) => {
  const [daemon, sandbox] = await sandboxAt(t, false);
  let first: string | undefined;
  daemon.onSocket = (peer) => {
    cat(peer);
    const { onMessage } = peer;
    first = undefined;
    peer.onMessage = (message) => {
      first ??= String(message);
      assert.ok(message.length <= 256 << 10);
      onMessage(message);
    };
  };
  const tty = { cols: 80, rows: 24 };
  for (const stdin of ["", "short", `é${"x".repeat((3 << 20) + 5)}`]) {
    assert.equal((await sandbox.commands.run("cat", { tty, stdin })).stdout, stdin);
    assert.ok(!("stdin" in (JSON.parse(first ?? "") as object)));
    const handle = await sandbox.commands.run("cat", { background: true, stdin });
    assert.equal((await handle.wait()).stdout, stdin);
  }
  // A program that reads none of it may end.
  daemon.onSocket = (peer) => {
    peer.onMessage = (message) => {
      if (typeof message === "string") return message.includes("args") ? peer.send({ started: { pid: 7 } }) : undefined;
      peer.send(exited(0));
      peer.socket.end(Buffer.from([0x88, 0]));
    };
  };
  const handle = await sandbox.commands.run("true", { background: true, stdin: "x".repeat(8 << 20) });
  assert.equal((await handle.wait()).exitCode, 0);
});

for (const isConnected of [false, true]) {
  test(`a program that was ${isConnected ? "connected to" : "started"} and reads nothing can be killed`, async (t) => {
    const [daemon, sandbox] = await sandboxAt(t, false);
    let received = 0;
    daemon.onSocket = (peer) => {
      peer.onMessage = (message) => {
        if (typeof message !== "string") received += message.length;
        else if (message.includes("args")) peer.send({ started: { pid: 7 } });
        else if (message.includes("SIGKILL")) peer.send(exited(137));
      };
    };
    const { commands } = sandbox;
    const handle = await (isConnected ? commands.connect(7) : commands.run("sleep", { background: true, stdin: true }));
    const sending = handle.sendStdin(Buffer.alloc(8_000_000)).catch((error: unknown) => error);
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.ok(received > 0 && received <= 1 << 20, String(received));
    const ending = new AbortController();
    const other = handle.sendStdin("x".repeat(200_000), { signal: ending.signal });
    ending.abort(new Error("enough"));
    await assert.rejects(other, /enough/);
    assert.equal(await handle.kill(), true);
    assert.equal((await handle.ended()).exitCode, 137);
    await sending;
  });
}

test("output until a signal aborts", async (t) => {
  const [daemon, sandbox] = await sandboxAt(t, false);
  let end = () => {};
  daemon.onSocket = (peer) => {
    peer.send({ started: { pid: 7 } });
    peer.send(out("a"));
    end = () => {
      for (const said of [out("b"), exited(0)]) peer.send(said);
    };
  };
  const handle = await sandbox.commands.run("x", { background: true });
  const ending = new AbortController();
  const told: forkd.Output[] = [];
  const following = async () => {
    for await (const output of handle.output({ signal: ending.signal })) {
      told.push(output);
      setTimeout(() => ending.abort(new Error("enough")), 20);
    }
  };
  await assert.rejects(following(), /enough/);
  assert.deepEqual(told, [{ stdout: "a" }]);
  end();
  assert.equal((await handle.wait()).stdout, "ab");
});

test("a signal is heard in the midst of output", async (t) => {
  const [daemon, sandbox] = await sandboxAt(t, false);
  daemon.onSocket = (peer) => {
    peer.send({ started: { pid: 7 } });
    for (let pieces = 0; pieces < 100; pieces++) peer.send(out("a"));
    peer.send(exited(0));
  };
  const handle = await sandbox.commands.run("x", { background: true });
  await new Promise((resolve) => setTimeout(resolve, 100));
  const ending = new AbortController();
  await assert.rejects(handle.wait({ signal: ending.signal, onStdout: () => ending.abort(new Error("enough")) }), /enough/);
  assert.equal(handle.stdout, "a");
  assert.equal((await handle.wait()).stdout.length, 100);
});

test("connections that fail", async (t) => {
  const [daemon, sandbox] = await sandboxAt(t, false);
  const run = () => sandbox.commands.run("x", { background: true });
  daemon.says(refused(404, "not_found"));
  await assert.rejects(run(), { name: "NotFoundError", requestId: "r1" });
  daemon.says((asked) => (asked.line.endsWith("/exec") ? refused(400, "malformed") : answer({ ...SANDBOX, state: "paused" })));
  await assert.rejects(run(), { name: "ConflictError", code: "wrong_state" });
  daemon.onSocket = (peer) => peer.socket.end();
  await assert.rejects(run(), forkd.ConnectionFailedError);
  daemon.onSocket = (peer) => peer.send({ error: { error: "no agent", code: "guest_failed" } });
  await assert.rejects(run(), forkd.GuestError);
  daemon.onSocket = (peer) => peer.send(out("early"));
  await assert.rejects(run(), forkd.ProtocolError);
  daemon.onSocket = (peer) => {
    peer.send({ started: { pid: 1 } });
    setTimeout(() => peer.socket.destroy(), 20);
  };
  await assert.rejects((await run()).wait(), forkd.ConnectionFailedError);
  daemon.onSocket = (peer) => peer.send({ started: { pid: 1 } });
  await assert.rejects((await run()).wait({ signal: AbortSignal.timeout(20) }), { name: "TimeoutError" });
});

test("a program that runs is connected to", async (t) => {
  const [daemon, sandbox] = await sandboxAt(t, false);
  daemon.onSocket = (peer, asked) => {
    assert.equal(asked.url, `/v1/sandboxes/${ID}/processes/9`);
    for (const said of [out("now"), exited(0)]) peer.send(said);
  };
  const handle = await sandbox.commands.connect(9);
  assert.deepEqual([handle.pid, (await handle.wait()).stdout], [9, "now"]);
  daemon.onSocket = undefined;
  daemon.says(refused(404, "not_found"));
  await assert.rejects(sandbox.commands.connect(10), forkd.NotFoundError);
});
