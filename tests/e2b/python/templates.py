"""The official E2B client for Python builds a template, unmodified: files, commands, variables, a server that is ready when the
template is. A sandbox of it has all of this, and one of its snapshots does.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import uuid

from e2b import Sandbox, Template, wait_for_port

NAME = f"built-{uuid.uuid4().hex[:8]}"


def main():
    with tempfile.TemporaryDirectory() as context:
        os.makedirs(f"{context}/site")
        for path, content in [("site/index.html", "größe\n"), ("site/deep.txt", "deep\n")]:
            with open(f"{context}/{path}", "w", encoding="utf-8") as file:
                file.write(content)
        template = (
            Template(file_context_path=context)
            .from_template("code-interpreter-v1")
            .set_envs({"GREETING": "hello $HOME"})
            .copy("site", "/srv/site")
            .run_cmd("echo built > /srv/built && cat /srv/site/deep.txt", user="root")
            # Nobody is named, so it is `user`, in its home, also in an image that has none.
            .run_cmd("id -un > who && pwd >> who && sudo id -u >> who")
            .set_workdir("/srv")
            .set_start_cmd("python3 -m http.server 8200 --directory /srv/site", wait_for_port(8200))
        )
        assert Template.exists(NAME) is False
        lines = []
        Template.build(template, NAME, cpu_count=1, memory_mb=512, on_build_logs=lambda entry: lines.append(entry.message))
        assert any(line.startswith("FROM") for line in lines), lines
        assert Template.exists(NAME) is True

        broken = Template().from_template("code-interpreter-v1").run_cmd("exit 9")
        try:
            Template.build(broken, f"{NAME}-broken")
        except Exception as error:
            print(f"as it should: {error}")
        else:
            raise AssertionError("a command that failed is no template")

    sandbox = Sandbox.create(NAME, timeout=600)
    assert sandbox.files.read("/srv/built") == "built\n"
    page = sandbox.commands.run("curl -s http://localhost:8200/index.html || python3 -c \"import urllib.request; print(urllib.request.urlopen('http://localhost:8200/index.html').read().decode(), end='')\"")
    assert page.stdout == "größe\n", page
    assert sandbox.commands.run("echo $GREETING").stdout == "hello $HOME\n"
    assert sandbox.files.read("/home/user/who") == "user\n/home/user\n0\n"
    assert sandbox.commands.run("id -un; pwd").stdout == "user\n/srv\n"
    owners = sandbox.commands.run("stat -c %U /home/user/who /srv/site/index.html /srv/built").stdout
    assert owners == "user\nuser\nroot\n", owners
    built_again(sandbox)
    sandbox.kill()
    on_base_and_on_that()
    print("templates are built")


def on_base_and_on_that():
    """A package of apt's on `base`, and a template on this template."""
    lines = []
    with tempfile.TemporaryDirectory() as context:
        archive_of_hello(f"{context}/archive")
        template = (
            Template(file_context_path=context)
            .from_template("base")
            .copy("archive", "/srv/archive")
            .run_cmd("rm -rf /etc/apt/sources.list*", user="root")
            .run_cmd("echo 'deb [trusted=yes] file:/srv/archive ./' > /etc/apt/sources.list", user="root")
            .apt_install(["hello"])
            .run_cmd("hello > /home/user/said && echo 'from sudo' | sudo tee /etc/said")
        )
        Template.build(template, f"{NAME}-apt", cpu_count=1, memory_mb=512, on_build_logs=lambda entry: lines.append(entry.message))
    assert any("Setting up hello" in line for line in lines), lines
    on_it = Template().from_template(f"{NAME}-apt").run_cmd("id -un >> said; hello --greeting=again >> said")
    Template.build(on_it, f"{NAME}-on-it", cpu_count=1, memory_mb=512)
    for name, said in [(f"{NAME}-apt", "Hello, world!\n"), (f"{NAME}-on-it", "Hello, world!\nuser\nagain\n")]:
        sandbox = Sandbox.create(name, timeout=600)
        assert sandbox.files.read("/home/user/said") == said, name
        assert sandbox.commands.run("hello; cat /etc/said; stat -c %U said").stdout == "Hello, world!\nfrom sudo\nuser\n"
        sandbox.kill()


def archive_of_hello(directory):
    """An archive with one package, so that nothing is asked of the internet."""
    os.makedirs(f"{directory}/hello/DEBIAN")
    os.makedirs(f"{directory}/hello/usr/bin")
    with open(f"{directory}/hello/DEBIAN/control", "w", encoding="utf-8") as file:
        file.write("Package: hello\nVersion: 1\nArchitecture: all\nMaintainer: a test <test@localhost>\nDescription: says hello\n")
    program = f"{directory}/hello/usr/bin/hello"
    with open(program, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\ncase $1 in --greeting=*) echo "${1#*=}" ;; *) echo "Hello, world!" ;; esac\n')
    os.chmod(program, 0o755)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", "hello", "hello.deb"], cwd=directory, check=True)
    shutil.rmtree(f"{directory}/hello")
    fields = subprocess.run(["dpkg-deb", "--field", "hello.deb"], cwd=directory, check=True, capture_output=True, text=True).stdout
    with open(f"{directory}/hello.deb", "rb") as file:
        package = file.read()
    with open(f"{directory}/Packages", "w", encoding="utf-8") as file:
        file.write(f"{fields}Filename: ./hello.deb\nSize: {len(package)}\nSHA256: {hashlib.sha256(package).hexdigest()}\n")


def built_again(before):
    """While a template is built again, its name means one build or the other, and sandboxes of the first go on."""
    again = Template().from_template("code-interpreter-v1").run_cmd("echo again > /srv/built", user="root")
    done, seen, failures = threading.Event(), [], []

    def use():
        while not done.is_set():
            try:
                sandbox = Sandbox.create(NAME, timeout=120)
                seen.append(sandbox.files.read("/srv/built"))
                sandbox.kill()
            except Exception as error:
                failures.append(error)
                return
            # The build has the same CPU.
            done.wait(10)

    user = threading.Thread(target=use)
    user.start()
    try:
        Template.build(again, NAME, cpu_count=1, memory_mb=512)
    finally:
        done.set()
        user.join()
    assert not failures, failures
    assert set(seen) <= {"built\n", "again\n"} and "built\n" in seen, seen
    after = Sandbox.create(NAME, timeout=120)
    assert after.files.read("/srv/built") == "again\n"
    after.kill()
    assert before.files.read("/srv/built") == "built\n"


if __name__ == "__main__":
    main()
