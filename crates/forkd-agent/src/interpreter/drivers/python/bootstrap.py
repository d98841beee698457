# Given to `python3 -c`. Standard input is the agent's socket: its first line is a JSON list of [module name, source] pairs.
# The socket moves to a descriptor that child processes do not inherit, and reading standard input finds nothing.
import os, sys
if sys.path and sys.path[0] == "":
    sys.path.pop(0)  # so that a json.py in the working directory is not taken for the library's
import json
control = os.dup(0)
null = os.open("/dev/null", os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
reader = os.fdopen(control, "rb", buffering=65536, closefd=False)

class Sources(dict):
    # Compiling all of them would delay the start by some milliseconds, and most code needs only a few.
    def find_spec(self, name, path=None, target=None):
        return type(sys.__spec__)(name, self) if name in self else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(self[module.__name__], "<" + module.__name__ + ">", "exec"), module.__dict__)

sys.meta_path.insert(0, Sources(json.loads(reader.readline())))
sys.path.insert(0, "")
sys.argv = [""]
import forkd_guest_driver
forkd_guest_driver.serve(reader, control)
