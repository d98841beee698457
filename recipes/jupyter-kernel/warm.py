# Runs in the snapshot, before it is frozen. What is defined here is there in the interpreter of its forks.
from jupyter_client import BlockingKernelClient

CONNECTION_FILE = "/run/jupyter/kernel.json"

# In the kernel: numpy, and random numbers that differ from fork to fork. forkd reseeds those of its own interpreters only, so
# the kernel looks itself whether it was forked: boot_id is another one in each fork.
PREPARE = """
import random
import numpy

def _reseed_in_a_fork(boot=[open('/proc/sys/kernel/random/boot_id').read()]):
    now = open('/proc/sys/kernel/random/boot_id').read()
    if boot[0] != now:
        boot[0] = now
        random.seed()
        numpy.random.seed()

get_ipython().events.register('pre_execute', _reseed_in_a_fork)
"""


def connect(patience=300):
    """A new connection to the kernel, which answers."""
    client = BlockingKernelClient(connection_file=CONNECTION_FILE)
    client.load_connection_file()
    client.start_channels(hb=False)
    client.wait_for_ready(timeout=patience)
    return client


def execute(client, code, patience=300):
    """Runs code in the kernel: its output and the value of its last expression, or an exception with the kernel's error."""
    output, value = [], None

    def take(message):
        nonlocal value
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            output.append(content["text"])
        elif kind == "execute_result":
            value = content["data"]["text/plain"]

    reply = client.execute_interactive(code, output_hook=take, timeout=patience)["content"]
    if reply["status"] != "ok":
        raise RuntimeError(f"{reply.get('ename')}: {reply.get('evalue')}")
    return "".join(output), value


# Stays connected: connections over the guest's loopback survive a fork.
kernel = connect()
execute(kernel, PREPARE)
assert execute(kernel, "print('warm'); int(numpy.arange(4).sum())") == ("warm\n", "6")
