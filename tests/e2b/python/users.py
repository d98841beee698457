"""Sandboxes whose template was not made for E2B, reached through the official client: each has the user that E2B's have.

FORKD_TEST_IMAGE is an image, FORKD_TEST_SNAPSHOT a snapshot that `forkd snapshot` has made, whose interpreter is warm as root, and
FORKD_TEST_SANDBOX a sandbox that `forkd fork` has made of that.
"""

import os

from e2b_code_interpreter import Sandbox

WHO = "id -un; id -u; pwd; echo $HOME; sudo id -u"
USER = "user\n1000\n/home/user\n/home/user\n0\n"


def check(sandbox):
    assert sandbox.commands.run(WHO).stdout == USER
    assert sandbox.commands.run("id -un", user="root").stdout == "root\n"
    sandbox.files.write("mine.txt", "x")
    assert sandbox.commands.run("stat -c %U:%G /home/user/mine.txt").stdout == "user:user\n"
    context = sandbox.create_code_context()
    assert sandbox.run_code("import os; (os.getuid(), os.getcwd())", context=context).text == "(1000, '/home/user')"


def main():
    of_image = Sandbox.create(os.environ["FORKD_TEST_IMAGE"], timeout=600)
    check(of_image)
    assert of_image.run_code("import os; (os.getuid(), os.getcwd())").text == "(1000, '/home/user')"
    fork = of_image.fork(count=1, timeout=600)[0]
    check(getattr(fork, "sandbox", fork))

    of_snapshot = Sandbox.create(os.environ["FORKD_TEST_SNAPSHOT"], timeout=600)
    check(of_snapshot)
    # What was warmed up is there, as it was.
    assert of_snapshot.run_code("warm").text == "42"

    found = Sandbox.connect(os.environ["FORKD_TEST_SANDBOX"], timeout=600)
    check(found)
    # The second time, everything is there already.
    check(Sandbox.connect(found.sandbox_id, timeout=600))
    print("each of them has its user")


if __name__ == "__main__":
    main()
