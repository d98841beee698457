/** Output as it comes, a program that is talked to, and a program that fails. */

import { CommandExitError, Sandbox } from "forkd";

await using sandbox = await Sandbox.create("numpy");
await sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.2; done", { onStdout: (text) => process.stdout.write(text) });

const calculator = await sandbox.commands.run(["python3", "-iq"], { background: true, stdin: true });
await calculator.sendStdin("6 * 7\nexit()\n");
for await (const { stdout } of calculator) if (stdout) console.log("python says", stdout.trim());

try {
  await sandbox.commands.run("ls /nowhere");
} catch (error) {
  if (!(error instanceof CommandExitError)) throw error;
  console.log(`exit code ${error.exitCode}: ${error.stderr.trim()}`);
}
