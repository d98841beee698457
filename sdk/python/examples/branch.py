"""An agent tries something, does not like it, and goes back to where it was."""

from forkd import Sandbox

with Sandbox.create("numpy") as sandbox:
    sandbox.files.write("/srv/plan.txt", "buy low\n")
    sandbox.eval("ideas = ['buy low']")

    before = sandbox.branch()
    print(f"branched: paused for {before.info.pause_us} µs")

    sandbox.commands.run("rm -r /srv/plan.txt")
    sandbox.eval("ideas.append('delete everything')")

    # Another one continues from the branch, while this one keeps its mistakes …
    (other,) = before.fork()
    print("this one: ", sandbox.eval("ideas"), sandbox.files.exists("/srv/plan.txt"))
    print("the other:", other.eval("ideas"), other.files.exists("/srv/plan.txt"))
    assert other.files.read("/srv/plan.txt") == "buy low\n"
    other.kill()

    # … or goes back itself.
    sandbox.rollback(before)
    assert sandbox.eval("ideas") == "['buy low']"
    assert sandbox.files.exists("/srv/plan.txt")
