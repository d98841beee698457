"""Output as it comes, a program that is talked to, and a program that fails."""

import sys

from forkd import CommandExitError, Sandbox

with Sandbox.create("numpy") as sandbox:
    sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.2; done", on_stdout=sys.stdout.write)

    calculator = sandbox.commands.run(["python3", "-iq"], background=True, stdin=True)
    calculator.send_stdin("6 * 7\nexit()\n")
    print("python says", calculator.wait().stdout.strip())

    try:
        sandbox.commands.run("ls /nowhere")
    except CommandExitError as error:
        print(f"exit code {error.exit_code}: {error.stderr.strip()}")
