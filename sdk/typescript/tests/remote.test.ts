/**
 * A daemon over TLS that wants a token.
 *
 * FORKD_TEST_REMOTE is where it is, FORKD_TEST_TOKEN its token, and FORKD_TEST_CERTIFICATE a file with its certificate.
 */

import assert from "node:assert/strict";
import process from "node:process";
import { test } from "node:test";
import * as forkd from "forkd";
import { Controller, Sandbox } from "forkd";
import { clean } from "./fake.js";

const address = process.env["FORKD_TEST_REMOTE"] ?? "";
const token = process.env["FORKD_TEST_TOKEN"] ?? "";
const verify = process.env["FORKD_TEST_CERTIFICATE"] ?? "";
const skip = address ? false : "FORKD_TEST_REMOTE names no daemon";

test("with a token and a certificate", { skip }, async (t) => {
  clean(t, { FORKD_ADDRESS: address, FORKD_TOKEN: token, SSL_CERT_FILE: verify });
  await using sandbox = await Sandbox.create();
  assert.ok(await sandbox.isRunning());
  assert.ok((await sandbox.proxyUrl(80)).startsWith(`${address}/v1/sandboxes/${sandbox.id}/proxy/80/`));
  // The WebSocket gets as far as the guest, too.
  await assert.rejects(sandbox.commands.run("true", { background: true }), (error) => {
    assert.ok(error instanceof forkd.ForkdError && !(error instanceof forkd.ConnectionFailedError), String(error));
    return true;
  });
});

test("without either", { skip }, async (t) => {
  clean(t);
  delete process.env["SSL_CERT_FILE"];
  await using stranger = new Controller({ address, verify });
  await assert.rejects(stranger.listSnapshots(), { name: "AuthenticationError", status: 401, message: /FORKD_TOKEN/ });
  await using controller = new Controller({ address, token, verify });
  await using base = await Sandbox.create("base", { controller });
  const other = new Sandbox(stranger, base.info);
  await assert.rejects(other.commands.run("true", { background: true }), forkd.AuthenticationError);
  await using distrustful = new Controller({ address, token, retries: 0 });
  await assert.rejects(distrustful.health(), { name: "ConnectionFailedError", message: /SSL_CERT_FILE/ });
});
