"""Agents' frameworks on E2B's client, unmodified: pydantic-ai passes the tests that it has for its back ends, deepagents does its
work. Both take it for granted that commands and files are those of `user` in /home/user.
"""

import sys

import e2b
import pytest
from langchain_e2b import E2BSandbox
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from pydantic_ai_harness.e2b_sandbox import E2BSandboxBackend


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


class TestPydanticAi(WorkspaceBackendSuite):
    @pytest.fixture(scope="class")
    async def backend(self, anyio_backend):
        backend = E2BSandboxBackend()
        yield backend
        await (await backend.get_sandbox()).kill()

    @pytest.fixture
    def fresh_backend(self):
        return E2BSandboxBackend

    @pytest.fixture
    def attach_backend(self):
        return lambda ref: E2BSandboxBackend(ref=ref)

    @pytest.fixture
    def destroy_environment(self):
        async def destroy(backend):
            await (await backend.get_sandbox()).kill()

        return destroy

    @pytest.fixture
    def can_detect_exit_with_inherited_output_pipes(self):
        """E2B's client waits for the end of the pipes."""
        return False

    @pytest.fixture
    def filesystem_honors_shell_permissions(self):
        """As E2B's own, the agent reads and writes files as root, and gives them to the user."""
        return False

    async def test_commands_are_the_users(self, backend):
        who = "id -un; pwd; sudo id -un"
        assert (await backend.run(who, shell=True)).stdout == "user\n/home/user\nroot\n"


def test_deepagents():
    sandbox = e2b.Sandbox.create(timeout=600)
    backend = E2BSandbox(sandbox=sandbox)
    assert backend.execute("id -un; pwd").output == "user\n/home/user\n"
    assert backend.execute("exit 7").exit_code == 7
    assert backend.write("/home/user/notes.txt", "one\ntwo\n").error is None
    assert backend.edit("/home/user/notes.txt", "two", "three").occurrences == 1
    assert "three" in backend.read("/home/user/notes.txt").file_data["content"]
    assert [found["path"] for found in backend.grep("three", "/home/user").matches] == ["/home/user/notes.txt"]
    assert [found["path"] for found in backend.glob("*.txt", "/home/user").matches] == ["notes.txt"]
    assert "/home/user/notes.txt" in [found["path"] for found in backend.ls("/home/user").entries]
    assert backend.upload_files([("/home/user/data/x.bin", bytes(range(256)))])[0].error is None
    assert backend.download_files(["/home/user/data/x.bin"])[0].content == bytes(range(256))
    assert backend.execute("stat -c %U notes.txt data/x.bin").output == "user\nuser\n"
    sandbox.kill()


if __name__ == "__main__":
    # Under emulation everything takes longer than the back ends' own limits, which are none of ours.
    sys.exit(pytest.main(["--quiet", "-p", "no:cacheprovider", "--tb=short", __file__, *sys.argv[1:]]))
