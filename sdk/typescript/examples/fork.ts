/** One parent, ten children: each begins where the parent was, and continues on its own. */

import assert from "node:assert/strict";
import { Sandbox } from "forkd";

await using parent = await Sandbox.create("numpy");
await parent.eval("data = numpy.arange(5)");
const children = await parent.fork(10);
await Promise.all(
  children.map(async (child, number) => {
    const answer = await child.eval(`(data * ${number}).tolist()`);
    console.log(child.id, answer);
    assert.equal(answer, `[${[0, 1, 2, 3, 4].map((value) => value * number).join(", ")}]`);
    await child.kill();
  }),
);
assert.equal(await parent.eval("data.tolist()"), "[0, 1, 2, 3, 4]");
