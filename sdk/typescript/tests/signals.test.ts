/** Every method of the client that takes time takes a signal. */

import assert from "node:assert/strict";
import { mkdtemp, readdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import * as forkd from "forkd";
import { Controller, Sandbox, Snapshot } from "forkd";
import { connected, ID, SANDBOX, SNAPSHOT } from "./fake.js";

type Ask = (options: { signal: AbortSignal }) => unknown;

/** Methods that ask nobody, and getters of what is known. */
const WITHOUT = ["constructor", "shared", "close", "disconnect"];
/** Methods that ask nobody once there is a daemon or a program. */
const AT_ONCE = [
  "Controller.address",
  "Sandbox.proxyUrl",
  "Commands.connect",
  "CommandHandle.sendStdin",
  "CommandHandle.closeStdin",
  "CommandHandle.resize",
  "CommandHandle.sendSignal",
  "CommandHandle.kill",
];

/** The names of a class's methods, static ones too. */
function methods(kind: { prototype: object }): string[] {
  const names: string[] = [];
  for (const owner of [kind, kind.prototype]) {
    for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(owner))) {
      if (typeof value === "function" && name !== "prototype" && !WITHOUT.includes(name)) names.push(name);
    }
  }
  return [...new Set(names)].sort();
}

test("every method honours a signal", async (t) => {
  const [daemon, controller] = await connected(t, { timeout: 60 });
  // Programs are started, and say nothing.
  daemon.onSocket = (peer) => {
    peer.onMessage = (message) => {
      if (String(message).includes("talks")) peer.send({ started: { pid: 7 } });
    };
  };
  daemon.says({ silent: true });
  const sandbox = new Sandbox(controller, SANDBOX as unknown as forkd.SandboxInfo);
  const snapshot = new Snapshot(controller, SNAPSHOT as unknown as forkd.SnapshotInfo);
  const { commands, contexts, files } = sandbox;
  const directory = await mkdtemp(join(tmpdir(), "forkd-"));
  const file = join(directory, "file");
  await writeFile(file, "x");
  const handle = await commands.run("talks", { background: true, stdin: true });
  t.after(() => handle.disconnect());

  const asks: [{ prototype: object; name: string }, Record<string, Ask | Ask[]>][] = [
    [
      Controller,
      {
        address: (o) => controller.address(o),
        health: (o) => controller.health(o),
        caller: (o) => controller.caller(o),
        version: (o) => controller.version(o),
        metrics: (o) => controller.metrics(o),
        ca: (o) => controller.ca(o),
        problems: (o) => controller.problems(o),
        resolveName: (o) => controller.resolveName("x", o),
        events: (o) => controller.events(o).next(),
        createSandboxes: (o) => controller.createSandboxes({ snapshot_tag: "x" }, o),
        listSandboxes: (o) => controller.listSandboxes(o),
        getSandbox: (o) => controller.getSandbox(ID, o),
        killSandbox: (o) => controller.killSandbox(ID, o),
        branchSandbox: (o) => controller.branchSandbox(ID, "x", o),
        pauseSandbox: (o) => controller.pauseSandbox(ID, o),
        resumeSandbox: (o) => controller.resumeSandbox(ID, o),
        rollbackSandbox: (o) => controller.rollbackSandbox(ID, "x", o),
        setSandboxTtl: (o) => controller.setSandboxTtl(ID, 1, o),
        setSandboxEgress: (o) => controller.setSandboxEgress(ID, { mode: "deny" }, o),
        setSandboxBandwidth: (o) => controller.setSandboxBandwidth(ID, 1, o),
        sandboxStats: (o) => controller.sandboxStats(ID, o),
        sandboxConsole: (o) => controller.sandboxConsole(ID, 1, o),
        execCommand: (o) => controller.execCommand(ID, { args: ["x"] }, o),
        evalCode: (o) => controller.evalCode(ID, { code: "x" }, o),
        pingSandbox: (o) => controller.pingSandbox(ID, o),
        createSnapshot: (o) => controller.createSnapshot({ image: "x" }, o),
        buildSnapshot: (o) => controller.buildSnapshot({ name: "x", contents: { image: "x" } }, o),
        listSnapshots: (o) => controller.listSnapshots(o),
        getSnapshot: (o) => controller.getSnapshot("x", o),
        deleteSnapshot: (o) => controller.deleteSnapshot("x", o),
        snapshotHistory: (o) => controller.snapshotHistory("x", o),
        verifySnapshot: (o) => controller.verifySnapshot("x", o),
        pruneSnapshots: (o) => controller.pruneSnapshots({}, o),
        compactSnapshot: (o) => controller.compactSnapshot("x", o),
        publishSnapshot: (o) => controller.publishSnapshot("x", true, o),
        resolveSnapshot: (o) => controller.resolveSnapshot("x", o),
        addSnapshotSignature: (o) =>
          controller.addSnapshotSignature({ reference: "x", key: "x", payload: "x", signature: "x" }, o),
        addSnapshotName: (o) => controller.addSnapshotName("x", "y", o),
        removeSnapshotName: (o) => controller.removeSnapshotName("x", "y", o),
        saveSnapshot: (o) => controller.saveSnapshot("x", o),
        loadSnapshot: (o) => controller.loadSnapshot(new Uint8Array(1), o),
        pullSnapshot: (o) => controller.pullSnapshot("x", o),
        pushSnapshot: (o) => controller.pushSnapshot("x", "y", o),
        listRepository: (o) => controller.listRepository("x", o),
        listImages: (o) => controller.listImages(o),
        getImage: (o) => controller.getImage("x", o),
        pullImage: (o) => controller.pullImage("x", o),
        debianImage: (o) => controller.debianImage([], o),
        buildImage: (o) => controller.buildImage(directory, o),
        importImage: (o) => controller.importImage(new Uint8Array(1), "x", o),
        pruneImages: (o) => controller.pruneImages({}, o),
        publishImage: (o) => controller.publishImage("x", true, o),
        removeImage: (o) => controller.removeImage("x", o),
        listKernels: (o) => controller.listKernels(o),
        addKernel: (o) => controller.addKernel({}, o),
        importKernel: (o) => controller.importKernel(new Uint8Array(1), o),
        chooseKernel: (o) => controller.chooseKernel("x", o),
        removeKernel: (o) => controller.removeKernel("x", o),
      },
    ],
    [
      Sandbox,
      {
        create: (o) => Sandbox.create("x", { ...o, controller }),
        connect: (o) => Sandbox.connect(ID, { ...o, controller }),
        list: (o) =>
          Sandbox.list({ ...o, controller })
            [Symbol.asyncIterator]()
            .next(),
        getInfo: (o) => sandbox.getInfo(o),
        isRunning: (o) => sandbox.isRunning(o),
        exec: [(o) => sandbox.exec("x", o), (o) => sandbox.exec("x", { ...o, onStdout: () => undefined })],
        eval: (o) => sandbox.eval("x", o),
        runCode: (o) => sandbox.runCode("x", o),
        branch: (o) => sandbox.branch("x", o),
        fork: (o) => sandbox.fork(2, o),
        pause: (o) => sandbox.pause(o),
        resume: (o) => sandbox.resume(o),
        rollback: (o) => sandbox.rollback("x", o),
        kill: (o) => sandbox.kill(o),
        setTimeout: (o) => sandbox.setTimeout(1, o),
        extendTimeout: (o) => sandbox.extendTimeout(1, o),
        setEgress: (o) => sandbox.setEgress({ mode: "deny" }, o),
        logs: (o) => sandbox.logs(1, o),
        stats: (o) => sandbox.stats(o),
        proxyUrl: (o) => sandbox.proxyUrl(1, "/", o),
        fetch: (o) => sandbox.fetch(1, "/", o),
      },
    ],
    [
      Snapshot,
      {
        create: (o) => Snapshot.create("x", "y", { ...o, controller }),
        build: (o) => Snapshot.build("x", { ...o, image: "y", controller }),
        fromSandbox: [(o) => Snapshot.fromSandbox(sandbox, "x", o), (o) => Snapshot.fromSandbox(ID, "x", { ...o, controller })],
        get: (o) => Snapshot.get("x", { ...o, controller }),
        list: (o) => Snapshot.list({ ...o, controller }),
        load: (o) => Snapshot.load(file, "x", { ...o, controller }),
        pull: (o) => Snapshot.pull("x", "y", { ...o, controller }),
        listRepository: (o) => Snapshot.listRepository("x", { ...o, controller }),
        archive: (o) => snapshot.archive(o),
        save: (o) => snapshot.save(join(directory, "saved"), o),
        push: (o) => snapshot.push("x", o),
        refresh: (o) => snapshot.refresh(o),
        fork: (o) => snapshot.fork(1, o),
        derive: (o) => snapshot.derive("x", o),
        history: (o) => snapshot.history(o),
        verify: (o) => snapshot.verify(o),
        compact: (o) => snapshot.compact(o),
        addName: (o) => snapshot.addName("x", o),
        removeName: (o) => snapshot.removeName("x", o),
        delete: (o) => snapshot.delete(o),
      },
    ],
    [
      forkd.Files,
      {
        read: [(o) => files.read("x", "text", o), (o) => files.read("x", "bytes", o), (o) => files.read("x", "stream", o)],
        write: (o) => files.write("x", "y", o),
        writeFiles: (o) => files.writeFiles([{ path: "x", data: "y" }], o),
        list: (o) => files.list("x", o),
        iterate: (o) => files.iterate("x", o).next(),
        getInfo: (o) => files.getInfo("x", o),
        exists: (o) => files.exists("x", o),
        makeDir: (o) => files.makeDir("x", o),
        rename: (o) => files.rename("x", "y", o),
        remove: (o) => files.remove("x", o),
        readArchive: (o) => files.readArchive("x", o),
        writeArchive: (o) => files.writeArchive("x", "y", o),
        upload: [(o) => files.upload(file, "x", o), (o) => files.upload(directory, "x", o)],
      },
    ],
    [
      forkd.Contexts,
      {
        list: (o) => contexts.list(o),
        create: (o) => contexts.create(o),
        remove: (o) => contexts.remove("x", o),
        restart: (o) => contexts.restart("x", o),
        interrupt: (o) => contexts.interrupt("x", o),
      },
    ],
    [
      forkd.Commands,
      {
        run: [
          (o) => commands.run("x", o),
          (o) => commands.run("x", { ...o, background: true }),
          (o) => commands.run("x", { ...o, tty: { cols: 1, rows: 1 } }),
          (o) => commands.run("x", { ...o, background: true, stdin: "x".repeat(2 << 20) }),
        ],
        start: (o) => commands.start("x", o),
        list: (o) => commands.list(o),
        connect: (o) => commands.connect(7, o),
        sendSignal: (o) => commands.sendSignal(7, "SIGINT", o),
        sendStdin: (o) => commands.sendStdin(7, "x", o),
        closeStdin: (o) => commands.closeStdin(7, o),
        kill: (o) => commands.kill(7, o),
      },
    ],
    [
      forkd.CommandHandle,
      {
        wait: (o) => handle.wait(o),
        ended: (o) => handle.ended(o),
        output: (o) => handle.output(o).next(),
        sendStdin: (o) => handle.sendStdin("x", o),
        closeStdin: (o) => handle.closeStdin(o),
        resize: (o) => handle.resize(1, 1, o),
        sendSignal: (o) => handle.sendSignal("SIGINT", o),
        kill: (o) => handle.kill(o),
      },
    ],
    [
      forkd.SandboxPaginator,
      {
        nextItems: (o) => Sandbox.list({ controller }).nextItems(o),
      },
    ],
  ];
  for (const [kind, known] of asks) {
    // `start` and `connect` of a handle are the client's own.
    const own = kind === forkd.CommandHandle ? ["start", "connect"] : [];
    const expected = methods(kind).filter((name) => !own.includes(name));
    assert.deepEqual(Object.keys(known).sort(), expected, kind.name);
    for (const [name, given] of Object.entries(known)) {
      for (const [number, ask] of [given].flat().entries()) {
        const what = `${kind.name}.${name} ${number}`;
        const reason = new Error("enough");
        const asked = daemon.asked.length;
        await rejects(() => ask({ signal: AbortSignal.abort(reason) }), reason, what);
        assert.equal(daemon.asked.length, asked, `${what} asked all the same`);
        if (AT_ONCE.includes(`${kind.name}.${name}`)) continue;
        const ending = new AbortController();
        setTimeout(() => ending.abort(reason), 10);
        await rejects(() => ask({ signal: ending.signal }), reason, what);
      }
    }
  }
  assert.deepEqual(await readdir(directory), ["file"]);
});

/** That this rejects with the reason, and soon. */
async function rejects(ask: () => unknown, reason: Error, what: string): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, 5000, "late")));
  const outcome = await Promise.race([(async () => ask())().catch((error: unknown) => error), late]);
  clearTimeout(timer);
  assert.equal(outcome, reason, what);
}
