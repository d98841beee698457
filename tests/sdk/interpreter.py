"""The official code interpreter client drives an agent: state, streams, rich results, errors, contexts, languages.

With the path of a forkd-agent as its argument it starts that one; without, one must answer on the ports 49983 and 49999 of
localhost. The agent's python3 must have matplotlib, pandas and Pillow, and no IPython.
Every function named test_* is a test.
"""

import base64
import datetime
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


def test_indented_code():
    assert sandbox.run_code("    word = 'in'\n    word").text == "in"
    code = "\n  \n    def count():\n        for number in range(2):\n            yield number\n    \n    sum(count())\n    "
    assert sandbox.run_code(code).text == "1"
    # As in IPython, string literals are dedented too.
    assert sandbox.run_code('  """\n  a\n    b"""').text == r"\na\n  b"
    assert sandbox.run_code("\n    !echo one\n    print('two')").logs.stdout == ["one\n", "two\n"]
    assert sandbox.run_code("\n    %%bash\n    echo three\n").logs.stdout == ["three\n"]
    error = sandbox.run_code("    good = 1\n      bad = 2").error
    assert error.name == "IndentationError" and "bad = 2" in error.traceback, error
    error = sandbox.run_code("\n    def fail():\n        return 1 / 0\n    fail()").error
    assert "return 1 / 0" in error.traceback, error


def test_lists_and_dictionaries_are_json():
    json = lambda code: sandbox.run_code(code).results[0].json
    assert json("[1, 2.5, None, True, 'ü', (1, 2), float('nan')]") == [1, 2.5, None, True, "ü", [1, 2], None]
    assert json("import datetime\n{1: {'a': datetime.date(2020, 1, 2)}, None: []}") == {"1": {"a": "2020-01-02"}, "null": []}
    assert json("import numpy\n{'a': numpy.arange(3), 'b': numpy.float32(0.1)}") == {"a": [0, 1, 2], "b": 0.1}
    assert json("display([1])") == [1]
    for other in ("(1, 2)", "{1}", "'text'", "[object()]", "[2 ** 64]", "loop = []; loop.append(loop); loop"):
        assert json(other) is None, other
    large = sandbox.run_code("list(range(10 ** 6))").results[0]
    assert large.json is None and large.text.endswith("999999]")
    assert sandbox.run_code("{'a': 1}").results[0].formats() == ["text", "json"]


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
    # Default contexts are there before they are used, and the newest is the last one.
    assert {"python", "javascript"} <= {context.language for context in listed.values()}
    assert list(listed)[-2:] == [one.id, two.id], listed
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
    assert both.results[1].formats() == ["text", "png", "chart"]
    table = sandbox.run_code("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', None]})").results[0]
    assert "<table" in table.html and table.data == {"a": [1, 2], "b": ["x", None]}, table.data


def chart(code):
    execution = sandbox.run_code("import datetime, matplotlib, numpy\nimport matplotlib.pyplot as plt\n" + code + "\nplt.show()")
    assert execution.error is None and execution.logs.stderr == [], execution
    return execution.results[0].chart


def test_charts_of_points():
    line = chart(
        "plt.plot([1, 2, float('nan')], [4, 5, 6], label='up'); plt.plot([0, 1, 4])\nplt.axhline(3); plt.grid()\n"
        "plt.title('Title'); plt.xlabel('Time (s)'); plt.ylabel('Frequency [Hz]'); plt.legend()"
    )
    assert (line.type, line.title) == ("line", "Title")
    assert (line.x_label, line.x_unit, line.y_label, line.y_unit) == ("Time (s)", "s", "Frequency [Hz]", "Hz")
    assert (line.x_scale, line.y_scale) == ("linear", "linear")
    assert [(one.label, one.points) for one in line.elements] == [
        ("up", [(1, 4), (2, 5), (None, 6)]),
        ("Line 1", [(0, 0), (1, 1), (2, 4)]),
    ]
    assert len(line.x_ticks) == len(line.x_tick_labels) > 2 and str(line.x_ticks[2]).startswith(line.x_tick_labels[2])
    dates = chart("plt.plot([datetime.date(2023, 9, day) for day in (1, 2)], [1, 3])")
    assert dates.x_scale == "datetime" and dates.elements[0].points[0] == ("2023-09-01", 1)
    assert datetime.datetime.fromisoformat(dates.x_ticks[0]).year == 2023
    words = chart("plt.plot([1, 2], ['A', 'B']); plt.xscale('log')")
    assert (words.x_scale, words.y_scale, words.elements[0].points) == ("log", "categorical", [(1, "A"), (2, "B")])
    scatter = chart("plt.scatter([1, 2], [3, 5], label='dots'); plt.grid()")
    assert (scatter.type, scatter.title, scatter.x_label) == ("scatter", None, None)
    assert [(one.label, one.points) for one in scatter.elements] == [("dots", [(1, 3), (2, 5)])]


def test_charts_of_bars_and_pieces():
    bars = lambda code: [(bar.group, bar.label, bar.value) for bar in chart(code).elements]
    assert bars("plt.bar(['a', 'b'], [5, 5], label='G')") == [("G", "a", 5), ("G", "b", 5)]
    assert bars("plt.bar([2020, 2021], [1, 2])") == [("Group 0", "2020", 1), ("Group 0", "2021", 2)]
    code = "at = numpy.arange(2)\nfor move in (-0.2, 0.2): plt.bar(at + move, [1, 2], 0.4)\nplt.xticks(at, ['a', 'b'])"
    assert bars(code) == [("Group 0", "a", 1), ("Group 0", "b", 2), ("Group 1", "a", 1), ("Group 1", "b", 2)]
    lying = chart("plt.barh(['a', 'b'], [1, 2]); plt.xlabel('Size [m]'); plt.ylabel('Name')")
    assert (lying.type, lying.x_label, lying.y_label, lying.y_unit) == ("bar", "Name", "Size [m]", "m")
    assert [(bar.label, bar.value) for bar in lying.elements] == [("a", 1), ("b", 2)]
    pie = chart("plt.pie([90, 10], labels=['No', 'Yes'], autopct='%1.1f%%', startangle=90)")
    assert pie.type == "pie"
    assert [(piece.label, piece.angle, piece.radius) for piece in pie.elements] == [("No", 324, 1), ("Yes", 36, 1)]


def test_charts_of_boxes():
    data = "[[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87, 60], [75, 82, 88, 79, 86]]"
    expected = [("A", 78, 85, 88, 90, 92, []), ("B", 76, 80, 87, 90, 95, [60]), ("C", 75, 79, 82, 86, 88, [])]
    turned = ", **({'orientation': 'horizontal'} if matplotlib.__version_info__ >= (3, 10) else {'vert': False})"
    for options, horizontal in [("", False), (", notch=True, showmeans=True", False), (turned, True)]:
        names = "plt.yticks" if horizontal else "plt.xticks"
        found = chart(f"plt.boxplot({data}, patch_artist=True{options}); {names}([1, 2, 3], 'ABC'); plt.xlabel('x')")
        assert (found.type, found.y_label if horizontal else found.x_label) == ("box_and_whisker", "x")
        boxes = [
            (box.label, box.min, box.first_quartile, box.median, box.third_quartile, box.max, box.outliers)
            for box in found.elements
        ]
        assert boxes == expected, boxes


def test_charts_of_other_figures():
    both = chart("figure, axes = plt.subplots(2); figure.suptitle('Both'); axes[0].plot([1, 2, 4]); axes[1].bar(['a'], [1])")
    assert (both.type, both.title, [one.type for one in both.elements]) == ("superchart", "Both", ["line", "bar"])
    unknown = chart("figure, axes = plt.subplots(); axes.add_artist(plt.Circle((0, 0), 1)); plt.title('Circle')")
    assert (unknown.type, unknown.title, unknown.elements) == ("unknown", "Circle", [])
    # Figures with too many points, without data or with an error in their data have no chart.
    for code in ("plt.plot(range(200_000))", "plt.subplots()", "plt.plot([1, 2]); plt.gca().get_title = None"):
        shown = sandbox.run_code(code + "\nplt.show()")
        assert (shown.error, shown.results[-1].formats()) == (None, ["text", "png"]), shown


def test_display_without_ipython():
    code = (
        "import importlib.metadata\nfrom IPython.display import *\nimport IPython\n"
        "display(HTML('<b>'), Markdown('*m*'), Latex('l'), Math('$x$'), SVG('<?xml?><svg></svg>'), JSON({'a': [1]}))\n"
        "display({'text/latex': 'raw'}, raw=True); display_html('<i>', raw=True); display(HTML('only'), include=['text/html'])\n"
        "handle = display(1, display_id=True); handle.update(2); clear_output(wait=True)\n"
        "display(Image(b'\\x89PNG'), Image(url='http://host/a.png'), Javascript('1'), Pretty('pretty'))\n"
        "IPython.get_ipython(), any(one.name == 'ipython' for one in importlib.metadata.distributions())"
    )
    execution = sandbox.run_code(code)
    assert execution.error is None and execution.text == "(None, False)", execution
    html, markdown, latex, math, svg, json, raw, italic, only, one, image, linked, javascript, pretty, _ = execution.results
    assert (html.html, html.text) == ("<b>", "<IPython.core.display.HTML object>")
    assert (markdown.markdown, latex.latex, math.latex) == ("*m*", "l", r"$\displaystyle x$")
    assert (svg.svg, json.json, one.text) == ("<svg></svg>", {"a": [1]}, "1")
    assert [result.formats() for result in (raw, italic, only)] == [["latex"], ["html"], ["html"]]
    assert (base64.b64decode(image.png), linked.html) == (b"\x89PNG", '<img src="http://host/a.png"/>')
    assert (javascript.javascript, pretty.text) == ("1", "pretty")
    assert sandbox.run_code("from IPython import display as shown\nshown.HTML('x')").results[0].html == "x"
    assert sandbox.run_code("import IPython.nothing").error.name == "ModuleNotFoundError"


def test_images_are_shown():
    image = "from PIL import Image\nimage = Image.new('RGBA', (4, 4), 'red')\n"
    for code in ("image.show()", "image.save('/tmp/forkd-test.png')", "image"):
        results = sandbox.run_code(image + code).results
        assert [base64.b64decode(one.png)[:4] for one in results] == [b"\x89PNG"], code
    assert sandbox.run_code(image + "import io; image.save(io.BytesIO(), 'PNG')").results == []
    assert sandbox.run_code("image.save('/no/such/directory/a.png')").error.name == "FileNotFoundError"
    assert sandbox.run_code("Image.open('/tmp/forkd-test.png').size").text == "(4, 4)"


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
