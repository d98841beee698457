/** An agent tries something, does not like it, and returns to where it was. */

import assert from "node:assert/strict";
import { Sandbox } from "forkd";

await using sandbox = await Sandbox.create("numpy");
await sandbox.files.write("/srv/plan.txt", "buy low\n");
await sandbox.eval("ideas = ['buy low']");

const before = await sandbox.branch();
console.log(`branched: paused for ${before.info.pause_us} µs`);

await sandbox.commands.run("rm -r /srv/plan.txt");
await sandbox.eval("ideas.append('delete everything')");

// Another one continues from the branch, while this one keeps its mistakes …
const [other] = await before.fork();
assert.equal(await other?.files.read("/srv/plan.txt"), "buy low\n");
await other?.kill();

// … or goes back itself.
await sandbox.rollback(before);
assert.equal(await sandbox.eval("ideas"), "['buy low']");
assert.ok(await sandbox.files.exists("/srv/plan.txt"));
