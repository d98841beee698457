"""The official Python client against `forkd mcp` and /mcp.

    clients.py FORKD URL [guests]

FORKD is the command, URL a daemon's, FORKD_TOKEN its token if it needs one. With `guests`, the daemon has real guests: commands, code,
pictures, files and the scenario branch -> fork 3 -> run in each -> pick -> rollback are tried. FORKD_MCP_SNAPSHOT names the snapshot to
use, which has Python; without it, the server chooses.
"""

import asyncio
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

TOOLS = ["run", "read", "write", "list_files", "fork", "branch", "rollback", "sandboxes", "snapshots", "expose_port", "end"]
READ_ONLY = {"read", "list_files", "sandboxes", "snapshots", "expose_port"}
SLOWNESS = float(os.environ.get("FORKD_TEST_SLOWNESS", "1"))
PATIENCE = 120 * SLOWNESS
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

SNAPSHOT = os.environ.get("FORKD_MCP_SNAPSHOT")
TOKEN = os.environ.get("FORKD_TOKEN")


def text(result) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def ok(client, tool, **arguments):
    result = await client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE)
    assert not result.is_error, f"{tool}: {text(result)}"
    return result


async def refused(client, tool, **arguments) -> str:
    result = await client.call_tool(tool, arguments, read_timeout_seconds=PATIENCE)
    assert result.is_error, f"{tool} was not refused: {text(result)}"
    return text(result)


async def protocol(client) -> None:
    """What needs no guest."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == TOOLS, list(tools)
    for name, tool in tools.items():
        assert tool.description and tool.input_schema["type"] == "object", name
        assert tool.annotations.read_only_hint == (name in READ_ONLY), name
    # The client checks structured content against the schema that the tool declares.
    snapshots = await ok(client, "snapshots")
    assert snapshots.structured_content["total"] >= 1, snapshots.structured_content
    assert (await ok(client, "sandboxes")).structured_content["total"] >= 0
    why = await refused(client, "run", command="true", sandbox="nobody")
    assert "Next: call `sandboxes`" in why, why
    why = await refused(client, "run", command="true", code="1")
    assert "exactly one of" in why, why
    templates = await client.list_resource_templates()
    assert len(templates.resource_templates) == 2, templates
    await client.list_resources()


async def guests(client) -> None:
    """What agents do: prepare a state, try three things from it at once, keep one, go back."""
    made = {} if SNAPSHOT is None else {"snapshot": SNAPSHOT}
    heard = []

    async def progress(done, total, message):
        heard.append(message)

    first = await client.call_tool(
        "run", {"code": "x = 20\nprint('hello', x)\nx + 1", "timeout_secs": 300, **made}, read_timeout_seconds=PATIENCE, progress_callback=progress
    )
    said = text(first)
    assert not first.is_error and "hello 20" in said and "21" in said, said
    assert heard, "no progress was told"
    sandbox = said.split("sandbox: ")[1].split()[0]
    try:
        await scenario(client, sandbox)
    finally:
        left = (await ok(client, "sandboxes")).structured_content["sandboxes"]
        own = [row["sandbox"] for row in left if row["made_here"]]
        await ok(client, "end", sandboxes=own or [sandbox])


async def scenario(client, sandbox) -> None:
    said = text(await ok(client, "run", code="x * 2", sandbox=sandbox))
    assert "40" in said, said
    failed = text(await ok(client, "run", code="1 / 0", sandbox=sandbox))
    assert "raised ZeroDivisionError" in failed, failed
    failed = text(await ok(client, "run", command="echo out; echo err >&2; exit 3", sandbox=sandbox))
    assert "exit code 3" in failed and "out\n[stderr]\nerr" in failed, failed
    late = text(await ok(client, "run", command="sleep 60", timeout_secs=1, sandbox=sandbox))
    assert "timed out after 1 s" in late, late

    # What code prints is told while it runs, and kept when its time is over.
    heard = []

    async def progress(done, total, message):
        heard.append(message)

    seconds = int(5 * SLOWNESS)
    late = await client.call_tool(
        "run",
        {"code": "print('begun', flush=True)\nimport time; time.sleep(600)", "timeout_secs": seconds, "sandbox": sandbox},
        read_timeout_seconds=PATIENCE,
        progress_callback=progress,
    )
    assert f"timed out after {seconds} s" in text(late) and "begun" in text(late), text(late)
    assert "begun" in heard, heard

    # A picture.
    drawn = await ok(
        client, "run", sandbox=sandbox, timeout_secs=300,
        code=f"import base64\nclass Dot:\n    def _repr_png_(self): return base64.b64decode('{PNG}')\nDot()",
    )
    pictures = [block for block in drawn.content if block.type == "image"]
    assert [(picture.mime_type, picture.data) for picture in pictures] == [("image/png", PNG)], drawn

    # Files.
    written = await ok(client, "write", sandbox=sandbox, path="/tmp/forkd/task.txt", content="try\n")
    assert written.structured_content["bytes"] == 4
    assert "try" in text(await ok(client, "read", sandbox=sandbox, path="/tmp/forkd/task.txt"))
    listed = await ok(client, "list_files", sandbox=sandbox, path="/tmp/forkd")
    assert [file["name"] for file in listed.structured_content["files"]] == ["task.txt"]
    why = await refused(client, "read", sandbox=sandbox, path="/tmp/forkd/none")
    assert "Next: call `list_files`" in why, why
    await ok(client, "write", sandbox=sandbox, path="/tmp/forkd/dot.png", content_base64=PNG)
    picture = await ok(client, "read", sandbox=sandbox, path="/tmp/forkd/dot.png")
    assert (picture.content[0].type, picture.content[0].mime_type) == ("image", "image/png"), picture

    # Output that is too long for an answer.
    long = await ok(client, "run", command="seq 100000", sandbox=sandbox)
    assert len(text(long)) < 20000, len(text(long))
    link = next(block for block in long.content if block.type == "resource_link")
    whole = (await client.read_resource(link.uri)).contents[0].text
    assert whole.endswith("100000\n") and len(whole) > 500000, len(whole)
    piece = text(await ok(client, "read", path=str(link.uri), offset=100000))
    assert "read on with offset" in piece

    # Branch, fork three, run in each, pick, roll back.
    await ok(client, "run", code="state = ['prepared']", sandbox=sandbox)
    branch = (await ok(client, "branch", sandbox=sandbox)).structured_content["snapshot"]
    try:
        forked = await ok(
            client, "fork", source=branch, n=3, timeout_secs=300,
            code="import os\nscore = int(os.environ['FORK_INDEX']) * 10 + len(state)\nprint(score)",
        )
        children = forked.structured_content["children"]
        scores = [int(child["output"].split()[0]) for child in children]
        assert scores == [1, 11, 21], children
        assert text(forked).startswith("| # | sandbox | status |"), text(forked)
        best = children[scores.index(max(scores))]["sandbox"]
        assert "21" in text(await ok(client, "run", code="score", sandbox=best))
        await ok(client, "end", sandboxes=[child["sandbox"] for child in children if child["sandbox"] != best])
        # The original has seen nothing of it, and goes back to where it was.
        await ok(client, "run", code="state.append('spoilt')", sandbox=sandbox)
        await ok(client, "rollback", sandbox=sandbox, branch=branch)
        after = text(await ok(client, "run", code="(state, 'score' in globals())", sandbox=sandbox))
        assert "(['prepared'], False)" in after, after
        commands = await ok(client, "fork", source=sandbox, commands=["echo a", "false"])
        assert [child["exit_code"] for child in commands.structured_content["children"]] == [0, 1]
        await ok(client, "end", sandboxes=[best] + [child["sandbox"] for child in commands.structured_content["children"]])
    finally:
        await ok(client, "end", sandboxes=[sandbox])
        await ok(client, "end", branches=[branch])


async def main() -> None:
    forkd, url, *rest = sys.argv[1:]
    environment = {name: value for name, value in os.environ.items() if name.startswith("FORKD_") or name in ("HOME", "PATH")}
    stdio = StdioServerParameters(command=forkd, args=["mcp", "--address", url], env=environment)
    headers = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
    for transport in ("stdio", "http"):
        for mode in ("legacy", "auto"):
            async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
                server = stdio if transport == "stdio" else streamable_http_client(f"{url}/mcp", http_client=http)
                async with Client(server, mode=mode, read_timeout_seconds=PATIENCE) as client:
                    await protocol(client)
                    if "guests" in rest and mode == "auto":
                        await guests(client)
            print(f"python client, {transport}, {mode}: ok", flush=True)


asyncio.run(main())
