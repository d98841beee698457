"""Runs cells for the agent, one at a time, in one namespace.

Requests are lines of JSON: {"op": "run", "id", "code", "env"} and {"op": "fork", "id", "env", "identity"}. Every request is answered
by any number of events and then by {"event": "done", "id", "rests"}. What code prints does not come this way: descriptors 1 and 2 are
pipes to the agent, so output of child processes and of C code is there too.
"""

import _thread
import ast
import builtins
import json
import linecache
import os
import signal
import sys
import traceback
import types

import forkd_guest
import forkd_guest_display as display
import forkd_guest_magics as magics
import forkd_guest_watch as watch

# Cells whose lines tracebacks can show. Functions of older ones still work.
REMEMBERED_CELLS = 1000
# Bytes as they are sent. The daemon takes lines of 16 MiB.
MAX_MESSAGE = 12 << 20
MAX_ERROR = 1 << 20
ALLOW_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import


class State:
    process = os.getpid()
    thread = _thread.get_ident()
    control = -1
    running = False
    # One message at a time, whichever thread displays something. `sending` is of the thread that runs cells, which alone is
    # interrupted.
    lock = _thread.allocate_lock()
    sending = False
    interrupted = False
    cells = 0
    loop = None


def serve(reader, control):
    State.control = control
    module = _main_module()
    _prepare()
    _send({"event": "ready"})
    for line in reader:
        request = json.loads(line)
        if request["op"] == "run":
            _run(request, module.__dict__)
        elif request["op"] == "fork":
            for problem in forkd_guest._after_fork(request):
                _send({"event": "problem", "message": problem})
        if os.getpid() != State.process:
            # Code called fork(2) and let the child run on to here. The conversation is the parent's.
            os._exit(0)
        _send({"event": "done", "id": request["id"], "rests": _rests()})
    # Without the agent, nobody will ever ask again.
    os._exit(0)


def _rests():
    """Whether nothing of this process runs before the next request, so that a fork can be told with that."""
    alone = len(sys._current_frames()) == 1 and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    return alone and not forkd_guest._hooks


def _main_module():
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    module.__dict__["display"] = display.display
    sys.modules["__main__"] = module
    return module


def _prepare():
    for stream in (sys.stdout, sys.stderr):
        # As at a terminal: whole lines at once, and no output that waits for the next cell.
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    builtins.input = _no_input
    display.send = _send_result
    watch.start()
    signal.signal(signal.SIGINT, _on_interrupt)
    # Sent after a fork while code runs: the fork request itself waits until it has finished, its random numbers must not. What
    # goes wrong (a module that is being imported) is told by that request.
    signal.signal(signal.SIGURG, lambda _signal, _frame: forkd_guest._reseed())


def _no_input(_prompt=""):
    raise EOFError("input() has nobody to ask: code runs without standard input")


def _on_interrupt(_signal, _frame):
    if State.sending:
        State.interrupted = True  # half a message would garble all that follow
    elif State.running:
        raise KeyboardInterrupt


def _run(request, namespace):
    State.cells += 1
    name = "<cell %d>" % State.cells
    before = _set_environment(request.get("env") or {})
    State.interrupted = False
    State.running = True
    try:
        try:
            _execute(request["code"], name, namespace)
            display.show_figures()
        finally:
            State.running = False
            _flush()
    except BaseException as error:
        _send_error(error, name)
    _restore_environment(before)


def _execute(code, name, namespace):
    tree, code = _parse(code, name)
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    linecache.cache.pop("<cell %d>" % (State.cells - REMEMBERED_CELLS), None)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    if tree.body:
        _evaluate(compile(tree, name, "exec", ALLOW_AWAIT), namespace)
    if last is None:
        return
    value = _evaluate(compile(last, name, "eval", ALLOW_AWAIT), namespace)
    if value is not None:
        namespace["_"] = value
        _flush()
        _send_result(display.fields(value), True)
        display.close_figure(value)


def _parse(code, name):
    flags = ast.PyCF_ONLY_AST | ALLOW_AWAIT
    try:
        return compile(code, name, "exec", flags), code
    except SyntaxError:
        code = magics.without_indent(code)
    try:
        return compile(code, name, "exec", flags), code
    except SyntaxError:
        translated = magics.translate(code)
        if translated is code:
            linecache.cache[name] = (len(code), None, code.splitlines(True), name)
            raise
        return compile(translated, name, "exec", flags), translated


def _evaluate(compiled, namespace):
    result = eval(compiled, namespace)
    return _await(result) if compiled.co_flags & COROUTINE else result


def _await(coroutine):
    loop = _event_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # interrupted: what it waited for must not come up in a later cell
            task.cancel()
            loop.run_until_complete(_settle(task))
        raise


async def _settle(task):
    import asyncio

    await asyncio.wait([task], timeout=1)


def _event_loop():
    import asyncio

    if State.loop is None or State.loop.is_closed():
        State.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(State.loop)
    return State.loop


def _set_environment(variables):
    before = {}
    for key, value in variables.items():
        before[key] = os.environ.get(key)
        os.environ[key] = value
    return before


def _restore_environment(before):
    for key, value in before.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # closed by the code, or replaced by something that is no stream


def _send_error(error, name):
    try:
        value = str(error)
    except Exception:
        value = "<the exception cannot be shown>"
    # The frames above the cell's are this driver's, and some below.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    try:
        formatted = traceback.TracebackException(type(error), error, trace)
        formatted.stack[:] = [frame for frame in formatted.stack if not frame.filename.startswith("<forkd_guest")]
        text = "".join(formatted.format())
    except Exception:
        text = type(error).__name__ + ": " + value
    name, value, text = type(error).__name__, display.cut(value, MAX_ERROR), display.cut(text, MAX_ERROR)
    _send({"event": "error", "name": name, "value": value, "traceback": text})


def _send_result(fields, main):
    _flush()
    message = {"event": "result", "main": main, "fields": fields}
    # What is no JSON, or too much, is left out; the text fits in any case.
    for optional in [None, "extra", "data", "json", "chart"] + [key for key in fields if key != "text"]:
        fields.pop(optional, None)
        try:
            if len(_encode(message)) <= MAX_MESSAGE:
                break
        except (TypeError, ValueError):
            continue
    _send(message)


def _encode(message):
    return json.dumps(message, allow_nan=False).encode("ascii") + b"\n"


def _send(message):
    # Code may have called fork(2), and the conversation is the parent's.
    if os.getpid() != State.process:
        return
    data = memoryview(_encode(message))
    interruptible = _thread.get_ident() == State.thread
    if interruptible:
        State.sending = True
    try:
        with State.lock:
            while data:
                data = data[os.write(State.control, data) :]
    finally:
        if interruptible:
            State.sending = False
    if interruptible and State.interrupted and State.running:
        State.interrupted = False
        raise KeyboardInterrupt
