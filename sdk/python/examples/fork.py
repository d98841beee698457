"""One parent, ten children: each begins where the parent was, and goes its own way."""

from forkd import Sandbox

with Sandbox.create("numpy") as parent:
    parent.eval("data = numpy.arange(5)")
    children = parent.fork(10)
    for number, child in enumerate(children):
        answer = child.eval(f"(data * {number}).tolist()")
        print(child.id, answer)
        assert answer == str([value * number for value in range(5)])
        child.kill()
    assert parent.eval("data.tolist()") == "[0, 1, 2, 3, 4]"
