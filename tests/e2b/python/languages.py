"""R and Java in an image that has them. The official E2B clients for Python, unmodified."""

import base64
import os
import threading
import time

from e2b_code_interpreter import Sandbox

TEMPLATE = os.environ["FORKD_TEST_TEMPLATE"]
SLOWNESS = float(os.environ.get("FORKD_TEST_SLOWNESS", "1"))
PATIENCE = 200 * SLOWNESS


def main():
    sandbox = Sandbox.create(TEMPLATE, timeout=3600, envs={"COLOUR": "red"})
    try:
        r(lambda code, **options: sandbox.run_code(code, language="r", timeout=PATIENCE, **options))
        java(lambda code, **options: sandbox.run_code(code, language="java", timeout=PATIENCE, **options))
        interrupted(sandbox, "r", "cat('on\\n'); while (TRUE) {}")
        interrupted(sandbox, "java", 'System.out.println("on"); while (true) {}')
        forked(sandbox)
    finally:
        sandbox.kill()
    print("R and Java run")


def r(run):
    execution = run("x <- 6\nprint('größe'); message('oh')\nx * 7")
    assert execution.text == "[1] 42", execution
    assert execution.logs.stdout == ['[1] "größe"\n'] and execution.logs.stderr == ["oh\n"], execution.logs
    error = run("f <- function(a) stop('bad ', a)\nf(x)").error
    assert (error.name, error.value) == ("Error", "bad 6") and "1. f(x)" in error.traceback, error
    assert run("x +").error.name == "ParseError"
    plots = run("plot(1:10)\nhist(c(1, 2, 2))").results
    assert [base64.b64decode(plot.png)[:4] for plot in plots] == [b"\x89PNG"] * 2, plots
    assert run("Sys.getenv('A')", envs={"A": "it's \"ü\""}).text == '[1] "it\'s \\"ü\\""'
    assert run("Sys.getenv('A')").text == '[1] ""'
    # What code calls its own is not the driver's, and what it closes neither.
    assert run("paste <- c <- 1; closeAllConnections(); sum(x, paste, c)").text == "[1] 8"
    assert run("system('cat; echo child')").logs.stdout == ["child\n"]


def java(run):
    execution = run('int x = 6;\nSystem.out.println("größe");\nx * 7')
    assert execution.text == "42" and execution.logs.stdout == ["größe\n"], execution
    error = run('int f(int a) { throw new IllegalStateException("bad " + a); }\nf(x)').error
    assert (error.name, error.value) == ("java.lang.IllegalStateException", "bad 6") and "at f " in error.traceback, error
    error = run('int wrong = "text";').error
    assert error.name == "CompilationError" and "incompatible types" in error.value, error
    assert run("record Point(int x) {}\nnew Point(x)").text == "Point[x=6]"
    # Variables are properties, too.
    variables = 'Stream.of("A", "COLOUR").map(name -> System.getenv(name) + "=" + System.getProperty(name)).toList()'
    assert run(variables, envs={"A": "ü", "COLOUR": "blue"}).text == "[ü=ü, blue=blue]"
    assert run(variables).text == "[null=null, red=red]"
    assert run("Stream.of(1, 2).map(n -> n * x).collect(Collectors.toList())").text == "[6, 12]"


def interrupted(sandbox, language, code):
    """A client that leaves takes its code along, and the context keeps its variables."""
    context = sandbox.create_code_context(language=language, request_timeout=PATIENCE)
    assert sandbox.run_code("x = 5" if language == "r" else "int x = 5;", context=context, timeout=PATIENCE).error is None
    begun = threading.Event()

    def leave():
        try:
            sandbox.run_code(code, context=context, timeout=5, on_stdout=lambda _: begun.set())
        except Exception as error:
            print(f"as it should: {error}")

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert begun.is_set(), "the code did not begin"
    kept = sandbox.run_code("x", context=context, timeout=PATIENCE)
    assert kept.text in ("[1] 5", "5"), kept
    sandbox.remove_code_context(context)


def forked(sandbox):
    """Two copies of warm interpreters draw other numbers."""
    sandbox.run_code("set.seed(1)", language="r", timeout=PATIENCE)
    sandbox.run_code("var own = new Random(); Math.random();", language="java", timeout=PATIENCE)
    copies = sandbox.fork(count=2, request_timeout=PATIENCE)
    sandboxes = [copy.sandbox if hasattr(copy, "sandbox") else copy for copy in copies]
    drawn = {"r": "runif(1)", "java": "Math.random() + UUID.randomUUID().toString()"}
    for language, code in drawn.items():
        numbers = [one.run_code(code, language=language, timeout=PATIENCE).text for one in [sandbox, *sandboxes]]
        assert len(set(numbers)) == 3 and None not in numbers, (language, numbers)
    for one in sandboxes:
        assert one.run_code('System.getProperty("COLOUR")', language="java", timeout=PATIENCE).text == "red"
        one.kill()


if __name__ == "__main__":
    main()
