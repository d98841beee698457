/** Which daemon is asked, and with which token. */

import assert from "node:assert/strict";
import { mkdir, mkdtemp, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { Controller } from "forkd";
import { find, parse, token } from "../src/address.js";
import { AuthenticationError, InvalidArgumentError } from "../src/errors.js";
import { clean } from "./fake.js";

const where = async (address?: string) => String(await new Controller({ address }).address());

test("addresses are read", () => {
  for (const [text, expected] of [
    ["unix:///run/forkd.sock", "unix:///run/forkd.sock"],
    ["http://127.0.0.1:1", "http://127.0.0.1:1"],
    ["https://host.example/", "https://host.example:8889"],
    ["http://[::1]:8889", "http://[::1]:8889"],
  ] as const) {
    assert.equal(String(parse(text)), expected);
  }
});

test("what is not an address is refused", () => {
  for (const address of [
    "host:1",
    "unix://x",
    "http://",
    "http://:1",
    "http://h:0",
    "http://h:65536",
    "http://u@h",
    "http://h/p",
    "ftp://h",
  ]) {
    assert.throws(() => new Controller({ address }), InvalidArgumentError, address);
  }
});

test("the order is the command line's", async (t) => {
  clean(t, { HOME: "/home/a" });
  delete process.env["XDG_DATA_HOME"];
  assert.equal(await where(), "unix:///home/a/.local/share/forkd/forkd.sock");
  for (const [variable, value, expected] of [
    ["XDG_DATA_HOME", "/data", "unix:///data/forkd/forkd.sock"],
    ["FORKD_HOME", "/forkd", "unix:///forkd/forkd.sock"],
    ["FORKD_SOCKET", "/s", "unix:///s"],
    ["FORKD_URL", "http://url:1", "http://url:1"],
    ["FORKD_ADDRESS", "http://address:1", "http://address:1"],
  ] as const) {
    process.env[variable] = value;
    assert.equal(await where(), expected);
  }
  assert.equal(await where("http://given:1"), "http://given:1");
});

test("the machine's daemon is the last one", async (t) => {
  const home = await mkdtemp(join(tmpdir(), "forkd-"));
  clean(t, { FORKD_HOME: home });
  const machine = join(home, "machines", "default");
  await mkdir(machine, { recursive: true });
  const here = `unix://${home}/forkd.sock`;
  for (const state of ["", "{}", '{"ports": null}', '{"ports": {"ssh": 1, "api": 2}}']) {
    await writeFile(join(machine, "run.json"), state);
    assert.equal(await where(), here);
  }
  await writeFile(join(machine, "token"), "key\n");
  assert.deepEqual(await find(), { address: parse("http://127.0.0.1:2"), token: "key" });
  process.env["FORKD_MACHINE"] = "../default";
  assert.equal(await where(), here);
  delete process.env["FORKD_MACHINE"];
  const listener = createServer().listen(join(home, "forkd.sock"));
  await new Promise((resolve) => listener.once("listening", resolve));
  assert.equal(await where(), here);
  listener.close();
});

test("tokens", async (t) => {
  clean(t);
  assert.equal(await token(), undefined);
  process.env["FORKD_TOKEN"] = "variable";
  assert.equal(await token(), "variable");
  const file = join(await mkdtemp(join(tmpdir(), "forkd-")), "token");
  await writeFile(file, "file\n");
  process.env["FORKD_TOKEN_FILE"] = file;
  assert.equal(await token(), "file");
  assert.equal(await token("given"), "given");
  await assert.rejects(token("two\nlines"), AuthenticationError);
  process.env["FORKD_TOKEN_FILE"] = `${file}-none`;
  await assert.rejects(token(), /cannot be read/);
});

test("a token that goes out unencrypted is a warning", async (t) => {
  clean(t);
  const warn = t.mock.method(console, "warn", () => undefined);
  for (const [address, count] of [
    ["http://host.example:1", 1],
    ["https://host.example:1", 1],
    ["http://127.0.0.1:1", 1],
  ] as const) {
    await new Controller({ address, token: "token" }).address();
    assert.equal(warn.mock.callCount(), count);
  }
});
