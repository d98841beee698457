"""What a generator cannot know: which sandboxes and snapshots there are, and what this host can bear."""

import json
import os
import random
import urllib.request

import schemathesis

URL = os.environ["FORKD_URL"]
CHOICE = random.Random(7)


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(URL + path, method=method, data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def a_sandbox(query=""):
    """The id of a sandbox, which is made if there are few."""
    there = ask("GET", f"/v1/sandboxes?limit=1000{query}")["sandboxes"]
    if len(there) < 3:
        there = ask("POST", "/v1/sandboxes", {"snapshot_tag": "base"})["sandboxes"]
    return CHOICE.choice(there)["id"]


def a_branch():
    """The tag of a snapshot that may go."""
    there = [it["tag"] for it in ask("GET", "/v1/snapshots")["snapshots"] if it["tag"] != "base"]
    if len(there) < 3:
        # One that has ended, since its time was over, has no branches any more.
        there = [ask("POST", f"/v1/sandboxes/{a_sandbox('&state=running')}/branch", {})["tag"]]
    return CHOICE.choice(there)


@schemathesis.hook
def before_load_schema(context, schema):
    """Only statuses that an operation names are good: the default would allow all of them."""
    for item in schema["paths"].values():
        for operation in item.values():
            operation["responses"].pop("default", None)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Most requests are about something that is there, and none takes the whole host."""
    parameters = case.path_parameters or {}
    usual = CHOICE.random() < 0.8
    if usual and "id" in parameters:
        case.path_parameters["id"] = a_sandbox()
    if "tag" in parameters and (usual or parameters["tag"] == "base"):
        case.path_parameters["tag"] = a_branch()
    if (case.query or {}).get("follow") in (True, "true"):
        # A console that is followed ends with its sandbox.
        case.query["follow"] = False
    if isinstance(case.body, dict):
        few(case.body, "n", 3)
        few(case.body, "timeout_secs", 5)
        if usual and case.body.get("snapshot_tag"):
            case.body["snapshot_tag"] = "base"
            case.body.pop("from_sandbox", None)
        elif usual and case.body.get("from_sandbox"):
            case.body["from_sandbox"] = a_sandbox()


def few(body, name, most):
    number = body.get(name)
    if isinstance(number, int) and number > most:
        # What is out of range is to be refused for that.
        body[name] = most if number <= 1000 else number


@schemathesis.serializer("application/x-tar")
def archive(context, value):
    """What is generated is hardly ever an archive, which is to be said in the answer."""
    return value if isinstance(value, bytes) else str(value).encode()
