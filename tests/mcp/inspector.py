"""The official inspector's command line with real guests: each call of a tool is a process of its own.

    inspector.py INSPECTOR ARGUMENT...

These begin the inspector's command and name the server. FORKD_MCP_SNAPSHOT names the snapshot to use; without it, the server chooses.
The inspector gives up a call after 60 seconds.
"""

import json
import os
import subprocess
import sys


def call(tool, **arguments):
    """The text and the data of an answer. The inspector's exit status is not 0 if the call fails."""
    command = [*sys.argv[1:], "--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, f"{tool}: {ended.returncode}: {ended.stdout}{ended.stderr}"
    answer = json.loads(ended.stdout)
    return "\n".join(block["text"] for block in answer["content"] if block["type"] == "text"), answer.get("structuredContent")


def main():
    snapshot = os.environ.get("FORKD_MCP_SNAPSHOT")
    text, _ = call("run", command="echo kept > /tmp/state", **({"snapshot": snapshot} if snapshot else {}))
    assert "(new, of snapshot " in text and "exit code 0" in text, text
    sandbox = text.removeprefix("sandbox: ").split()[0]
    ended, branch = [sandbox], None
    try:
        branch = call("branch", sandbox=sandbox)[1]["snapshot"]
        call("run", sandbox=sandbox, command="echo spoilt > /tmp/state")
        children = call("fork", source=branch, commands=["echo first; cat /tmp/state", "cat /tmp/state; exit 3"])[1]["children"]
        ended += [child["sandbox"] for child in children]
        outcomes = [(child["exit_code"], child["output"].split()) for child in children]
        assert outcomes == [(0, ["first", "kept"]), (3, ["kept"])], outcomes
        call("rollback", sandbox=sandbox, branch=branch)
        text, _ = call("run", sandbox=sandbox, command="cat /tmp/state")
        assert "kept" in text and "spoilt" not in text, text
    finally:
        gone = call("end", sandboxes=ended)[1]["sandboxes"]
        if branch is not None:
            call("end", branches=[branch])
    assert gone == ended, gone
    left = [row["sandbox"] for row in call("sandboxes")[1]["sandboxes"]]
    assert not set(left) & set(ended), left


main()
