"""The API itself, with the names that earlier clients of forkd have."""

from forkd import Controller, ControllerError

with Controller() as controller:
    children = controller.spawn_sandboxes("numpy", n=2)
    for child in children:
        answer = controller.exec_command(child["id"], ["echo", "hello from", child["id"]])
        print(answer["stdout"].strip(), answer["exit_code"])
        print(controller.eval_code(child["id"], "numpy.zeros(3).tolist()")["result"])
        controller.kill_sandbox(child["id"])
    try:
        controller.get_sandbox(children[0]["id"])
    except ControllerError as error:
        print(f"{error.status}: {error}")
