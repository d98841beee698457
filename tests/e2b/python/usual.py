"""The template that `forkd e2b setup` makes has what E2B's has. The official E2B clients for Python, unmodified."""

import os

from e2b_code_interpreter import Sandbox

SLOWNESS = float(os.environ.get("FORKD_TEST_SLOWNESS", "1"))
PATIENCE = 120 * SLOWNESS
LOADED = "import sys; [name for name in ('numpy', 'pandas', 'matplotlib.pyplot', 'requests', 'PIL.Image', 'sklearn') if name not in sys.modules]"
MODEL = """
import io, numpy, pandas
from PIL import Image
from sklearn.linear_model import LinearRegression
frame = pandas.DataFrame({'x': range(10), 'y': [3 * x + 1 for x in range(10)]})
model = LinearRegression().fit(frame[['x']], frame['y'])
Image.fromarray(numpy.zeros((8, 8, 3), 'uint8')).save(io.BytesIO(), 'PNG')
round(float(model.predict(pandas.DataFrame({'x': [20]}))[0]), 6)
"""
SETUP = """
from setuptools import setup
setup(name={name!r}, version="1", py_modules=[{name!r}], entry_points={{"console_scripts": ["{name}-command = {name}:main"]}})
"""
# Kilobytes that programs can still have.
ROOM = "int(next(line for line in open('/proc/meminfo') if line.startswith('MemAvailable')).split()[1])"


def main():
    sandbox = Sandbox.create(timeout=3600)
    try:
        python(sandbox)
        typescript(sandbox)
        commands(sandbox)
        packages(sandbox)
    finally:
        sandbox.kill()
    print("the usual template has what it should have")


def python(sandbox):
    loaded = sandbox.run_code(LOADED, timeout=PATIENCE)
    assert loaded.text == "[]", f"not loaded before: {loaded}"
    fitted = sandbox.run_code(MODEL, timeout=PATIENCE)
    assert fitted.text == "61.0", fitted
    room = int(sandbox.run_code(ROOM, timeout=PATIENCE).text)
    assert room > 400 << 10, f"{room} KiB are left"


def typescript(sandbox):
    code = "enum Colour { Red = 41 }\nconst next = (n: number): number => n + 1; next(Colour.Red)"
    execution = sandbox.run_code(code, language="typescript", timeout=PATIENCE)
    assert execution.text == "42" and execution.logs.stderr == [], execution
    assert sandbox.run_code("next(2 as number)", language="ts", timeout=PATIENCE).text == "3"
    assert sandbox.run_code("typeof next", language="javascript", timeout=PATIENCE).text == "undefined"


def commands(sandbox):
    sandbox.files.write("/home/user/typed.ts", "const words: string[] = ['a', 'b']; console.log(words.length)\n")
    command = "node typed.ts && node --version && npm --version && pip --version && git --version && curl --version"
    ended = sandbox.commands.run(command, timeout=PATIENCE)
    lines = ended.stdout.splitlines()
    assert lines[0] == "2" and lines[1].startswith("v24."), ended
    assert sandbox.commands.run("npm prefix --global", timeout=PATIENCE).stdout == "/usr/local\n"


def packages(sandbox):
    """pip installs for `user` and for root, where a running interpreter finds it; and with --user, where a new one does."""
    for name, user, option in (("greeter", "user", ""), ("root_greeter", "root", ""), ("own_greeter", "user", "--user")):
        directory = f"/tmp/{name}"
        sandbox.files.write(f"{directory}/setup.py", SETUP.format(name=name), user=user)
        sandbox.files.write(f"{directory}/{name}.py", f"def main():\n    print({name!r})\n", user=user)
        # Nothing is fetched for it.
        install = f"pip install {option} --no-build-isolation --no-deps --no-index {directory}"
        sandbox.commands.run(install, user=user, timeout=PATIENCE)
        # Its command is on the path, too.
        ran = sandbox.commands.run(f"python -c 'import {name}; {name}.main()' && {name}-command", user=user, timeout=PATIENCE)
        assert ran.stdout == f"{name}\n{name}\n", ran
        context = sandbox.create_code_context() if option else None
        imported = sandbox.run_code(f"import {name}; {name}.main()", context=context, timeout=PATIENCE)
        assert imported.logs.stdout == [f"{name}\n"], imported


if __name__ == "__main__":
    main()
