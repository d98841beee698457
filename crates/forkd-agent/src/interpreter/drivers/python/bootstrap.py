# Given to `python3 -c`. Standard input is the agent's socket: its first line is a JSON list of [module name, source] pairs.
# The socket moves to a descriptor that child processes do not inherit, and reading standard input finds nothing.
import os, sys
if sys.path and sys.path[0] == "":
    sys.path.pop(0)  # so that a json.py in the working directory is not taken for the library's
import json, types
control = os.dup(0)
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
reader = os.fdopen(control, "rb", buffering=65536, closefd=False)
for name, source in json.loads(reader.readline()):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
sys.path.insert(0, "")
sys.argv = [""]
sys.modules["forkd_guest_driver"].serve(reader, control)
