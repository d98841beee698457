"""The official code interpreter client drives an agent: state, streams, rich results, errors, contexts, languages.

With the path of a forkd-agent as its argument it starts that one; without, one must answer on the ports 49983 and 49999 of
localhost. The agent's python3 must have matplotlib and pandas.
Every function named test_* is a test.
"""

import base64
import os
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

from e2b_code_interpreter import Sandbox

# How many times longer everything may take: a guest in an emulator is slow.
SLOWNESS = float(os.environ.get("FORKD_TEST_SLOWNESS", "1"))

sandbox = Sandbox.create()


def test_value_of_the_last_expression():
    execution = sandbox.run_code("x = 20\nx + 1")
    assert execution.error is None
    assert execution.text == "21"
    assert execution.results[0].is_main_result
    first = execution.execution_count
    assert sandbox.run_code("x").execution_count == first + 1


def test_state_stays():
    sandbox.run_code("def double(value):\n    return value * 2\nword = 'grüße'")
    assert sandbox.run_code("double(word)").text == "grüßegrüße"


def test_streams_come_while_the_code_runs():
    seen = []
    code = "import time, sys\nprint('one', flush=True)\ntime.sleep(0.5)\nprint('two')\nprint('three', file=sys.stderr)"
    execution = sandbox.run_code(
        code,
        on_stdout=lambda message: seen.append((time.monotonic(), message.line)),
        on_stderr=lambda message: seen.append((time.monotonic(), message.line)),
    )
    assert [line for _, line in seen] == ["one\n", "two\n", "three\n"], seen
    assert seen[1][0] - seen[0][0] > 0.3, "the first line came with the second"
    assert execution.logs.stdout == ["one\n", "two\n"]
    assert execution.logs.stderr == ["three\n"]


def test_output_of_child_processes():
    execution = sandbox.run_code("import subprocess\nsubprocess.run(['sh', '-c', 'echo from a child; echo and >&2'])\nNone")
    assert "".join(execution.logs.stdout) == "from a child\n"
    assert "".join(execution.logs.stderr) == "and\n"


def test_errors_have_name_value_and_traceback():
    seen = []
    execution = sandbox.run_code("def fail():\n    return 1 / 0\nfail()", on_error=seen.append)
    assert execution.error.name == "ZeroDivisionError"
    assert execution.error.value == "division by zero"
    assert "return 1 / 0" in execution.error.traceback
    assert len(seen) == 1
    assert sandbox.run_code("x = = 1").error.name == "SyntaxError"
    assert sandbox.run_code("input()").error.name == "EOFError"
    assert sandbox.run_code("import sys; sys.exit(3)").error.name == "SystemExit"
    assert sandbox.run_code("40 + 2").text == "42"


def test_variables_of_a_call():
    code = "import os\nos.environ.get('COLOUR', 'none')"
    assert sandbox.run_code(code, envs={"COLOUR": "red"}).text == "red"
    assert sandbox.run_code(code).text == "none"


def test_await_and_display():
    assert sandbox.run_code("import asyncio\nawait asyncio.sleep(0.01)\n'awake'").text == "awake"
    code = (
        "class Page:\n    def _repr_html_(self): return '<b>hi</b>'\n"
        "    def _repr_json_(self): return {'a': 1}\n    def _repr_markdown_(self): return '**hi**'\n"
        "display(Page())\nPage()"
    )
    shown, value = sandbox.run_code(code).results
    assert (shown.html, shown.json, shown.markdown) == ("<b>hi</b>", {"a": 1}, "**hi**")
    assert not shown.is_main_result and value.is_main_result


def test_contexts_are_apart():
    one = sandbox.create_code_context(cwd="/tmp")
    two = sandbox.create_code_context()
    assert sandbox.run_code("import os\nname = 'one'\nos.getcwd()", context=one).text == "/tmp"
    assert sandbox.run_code("name", context=two).error.name == "NameError"
    assert sandbox.run_code("name", context=one).text == "one"
    listed = {context.id: context for context in sandbox.list_code_contexts()}
    assert listed[one.id].cwd == "/tmp" and listed[one.id].language == "python"
    sandbox.restart_code_context(one)
    assert sandbox.run_code("name", context=one).error.name == "NameError"
    sandbox.remove_code_context(one)
    sandbox.remove_code_context(two)
    assert one.id not in {context.id for context in sandbox.list_code_contexts()}
    try:
        sandbox.run_code("1", context=one)
    except Exception as error:
        assert "404" in str(error) or "not found" in str(error).lower(), error
    else:
        raise AssertionError("code ran in a context that was removed")


def test_contexts_run_side_by_side():
    contexts = [sandbox.create_code_context() for _ in range(3)]
    begun = time.monotonic()
    threads = [
        threading.Thread(target=sandbox.run_code, args=(f"import time; time.sleep({SLOWNESS})",), kwargs={"context": context})
        for context in contexts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 2.5 * SLOWNESS
    for context in contexts:
        sandbox.remove_code_context(context)


def test_a_client_that_leaves_interrupts():
    context = sandbox.create_code_context()
    sandbox.run_code("kept = 'state'", context=context)
    try:
        sandbox.run_code("while True: pass", context=context, timeout=1)
    except Exception as error:
        assert "imeout" in type(error).__name__, error
    else:
        raise AssertionError("an endless loop ended")
    assert sandbox.run_code("kept", context=context, timeout=10 * SLOWNESS).text == "state"
    sandbox.remove_code_context(context)


def test_a_killed_interpreter_says_so():
    context = sandbox.create_code_context()
    error = sandbox.run_code("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", context=context).error
    assert error.name == "InterpreterEnded" and "killed" in error.value, error
    assert sandbox.run_code("6 * 7", context=context).text == "42"
    sandbox.remove_code_context(context)


def test_javascript():
    run = lambda code, **options: sandbox.run_code(code, language="javascript", **options)
    assert run("const answer = 41; answer + 1").text == "42"
    execution = run("console.log('hello'); console.error('oh'); await Promise.resolve({ a: [answer] })")
    assert execution.logs.stdout == ["hello\n"] and execution.logs.stderr == ["oh\n"]
    assert execution.text == "{ a: [ 41 ] }"
    error = run("null.x").error
    assert error.name == "TypeError" and "<cell" in error.traceback, error
    assert run("process.env.COLOUR", envs={"COLOUR": "blue"}).text == "blue"


def test_typescript():
    run = lambda code, **options: sandbox.run_code(code, language="typescript", **options)
    version = sandbox.run_code("process.versions.node", language="javascript").text
    if tuple(int(part) for part in version.split(".")) < (22, 13):
        error = run("const answer: number = 41").error
        assert f"TypeScript needs Node.js 22.13 or newer; this is v{version}" in error.value, error
        return
    execution = run("interface Point { x: number }\nconst point: Point = { x: 41 }; console.log('typed'); point.x + 1")
    assert execution.text == "42" and execution.logs.stdout == ["typed\n"] and execution.logs.stderr == [], execution
    # The context keeps what was declared, apart from that of JavaScript.
    assert run("(await Promise.resolve(point as Point)).x").text == "41"
    assert run("import { basename } from 'node:path'\nbasename('/a/b' as string)").text == "b"
    assert run("enum Colour { Red = 3, Blue }\nnamespace Deep { export const depth: number = 2 }").error is None
    assert run("Colour.Blue + Deep.depth").text == "6"
    assert sandbox.run_code("typeof point", language="javascript").text == "undefined"
    error = run("const wrong: = 3").error
    assert error.name == "SyntaxError", error
    error = run("null!.x").error
    assert error.name == "TypeError" and "<cell" in error.traceback, error
    context = sandbox.create_code_context(language="ts")
    assert context.language == "typescript", context
    assert sandbox.run_code("let n: number = 7; n", context=context).text == "7"
    sandbox.remove_code_context(context)


def test_bash():
    run = lambda code, **options: sandbox.run_code(code, language="bash", **options)
    assert run("cd /; word=hi; greet() { echo $word $PWD; }").error is None
    assert run("greet").logs.stdout == ["hi /\n"]
    error = run("ls /nowhere-at-all; exit_with() { return 3; }; exit_with").error
    assert (error.name, error.value) == ("ExitStatus", "exit status 3"), error
    assert run("echo $COLOUR", envs={"COLOUR": "green"}).logs.stdout == ["green\n"]
    assert run("echo ${COLOUR-none}").logs.stdout == ["none\n"]


def test_plots_and_tables():
    execution = sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()\n'shown'")
    assert execution.error is None, execution.error
    plot, value = execution.results
    assert base64.b64decode(plot.png).startswith(b"\x89PNG") and value.text == "shown"
    plot = sandbox.run_code("figure, axes = plt.subplots()\naxes.bar(['a'], [1]);").results[0]
    assert base64.b64decode(plot.png).startswith(b"\x89PNG")
    assert sandbox.run_code("plt.get_fignums()").text == "[]"
    # A figure that nobody has shown is shown, and is not taken for the result of the last line.
    both = sandbox.run_code("plt.plot([1, 2, 3])\n42")
    assert both.text == "42", both
    assert [bool(result.png) for result in both.results if not result.is_main_result] == [True], both
    table = sandbox.run_code("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', None]})").results[0]
    assert "<table" in table.html and table.data == {"a": [1, 2], "b": ["x", None]}, table.data


def answers(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return urllib.request.urlopen("http://localhost:49999/health", timeout=5).status == 200
        except OSError:
            time.sleep(0.02)
    return False


def main(arguments):
    agent = None
    if arguments:
        addresses = ["--envd", "127.0.0.1:49983", "--interpreter", "127.0.0.1:49999"]
        agent = subprocess.Popen([arguments[0], "serve", *addresses], stdout=subprocess.DEVNULL)
    try:
        if not answers(60):
            print("no agent answers on port 49999", file=sys.stderr)
            return 2
        return 1 if run_all(arguments[1:]) else 0
    finally:
        if agent:
            agent.kill()
            agent.wait()


def run_all(names):
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    tests = [(name, test) for name, test in tests if not names or any(part in name for part in names)]
    failed = 0
    for name, test in tests:
        started = time.monotonic()
        try:
            test()
            print(f"ok      {name} ({time.monotonic() - started:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
    print(f"{len(tests) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
