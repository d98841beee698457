"""The few shortcuts of IPython that people type without thinking: `!command`, `%pip`, `%cd`, `%env`, `%%bash`.

They are looked for only in code that is not Python as it stands, so `x = (a\n%b)` stays a remainder.
"""

import os
import re
import subprocess
import sys

_ASSIGNED = re.compile(r"^(\s*)([A-Za-z_][\w.\[\]'\", ]*?)\s*=\s*!(.+)$")
_SHELL = re.compile(r"^(\s*)!(.+)$")
_MAGIC = re.compile(r"^(\s*)%([A-Za-z_]\w*)(?:[ \t]+(.*))?$")
_QUIET = ("matplotlib", "load_ext", "autoreload", "config")


class MagicError(Exception):
    pass


def without_indent(code):
    """The code without leading blank lines, and without the indentation of its first line. Like IPython, this changes all lines
    that begin with that indentation, also inside string literals."""
    lines = code.split("\n")
    while len(lines) > 1 and not lines[0].strip():
        del lines[0]
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip(" \t"))]
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in lines)


def translate(code):
    """The code with its shortcuts as calls; the same object when there are none."""
    first, _, rest = code.lstrip().partition("\n")
    if first.startswith("%%"):
        return _cell(first[2:].split(None, 1), rest)
    lines, changed = [], False
    for line in code.split("\n"):
        replaced = _line(line)
        changed = changed or replaced is not None
        lines.append(line if replaced is None else replaced)
    return "\n".join(lines) if changed else code


def _line(line):
    match = _ASSIGNED.match(line)
    if match:
        return "%s%s = __import__('forkd_guest_magics').lines(%r)" % match.groups()
    match = _SHELL.match(line)
    if match:
        return "%s__import__('forkd_guest_magics').shell(%r)" % match.groups()
    match = _MAGIC.match(line)
    if match:
        space, name, rest = match.groups()
        return "%s__import__('forkd_guest_magics').magic(%r, %r)" % (space, name, rest or "")
    return None


def _cell(words, body):
    name = words[0] if words else ""
    if name in ("bash", "sh"):
        return "__import__('forkd_guest_magics').script(%r, %r)" % (name, body)
    if name in ("time", "capture"):
        return body
    return "__import__('forkd_guest_magics').magic(%r, '')" % ("%" + name)


def shell(command):
    """Runs a command; its output is the cell's. A failure is told, not raised, as IPython does."""
    status = subprocess.call(command, shell=True)
    if status != 0:
        sys.stderr.write("[exit status %d]\n" % status)


def lines(command):
    return subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def script(interpreter, body):
    subprocess.run([interpreter, "-c", body], check=True)


def magic(name, rest):
    if name == "pip":
        subprocess.run([sys.executable, "-m", "pip"] + rest.split(), check=True)
        import importlib

        importlib.invalidate_caches()
    elif name == "cd":
        os.chdir(os.path.expanduser(rest.strip() or "~"))
    elif name == "env":
        key, separator, value = rest.partition("=")
        if separator:
            os.environ[key.strip()] = value.strip()
        else:
            print(os.environ.get(key.strip(), ""))
    elif name == "pwd":
        print(os.getcwd())
    elif name not in _QUIET:
        raise MagicError("there is no %%%s here: only !command, %%pip, %%cd, %%env, %%pwd and %%%%bash" % name)
