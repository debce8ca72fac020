"""Commands of ``tailrace``, each in a process of its own, without half a second of imports for each.

The first command starts one more process, which imports what commands use and makes their parsers. For each command it
makes a copy of itself (a fork) with the words, variables, folder and standard streams of that command, which runs
``python -m tailrace.cli`` from its first line. An import that a command lacks is not noticed that way:
tests/unit/cli/test_start.py, and the tests that run pages of the documents, start commands as users do.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile

import typer.main

IMPORTED = (
    "tailrace.cli.app", "tailrace.cli.messages", "tailrace.cli.serve", "tailrace.cli.store_admin", "tailrace.client",
    "tailrace.doctor.retention", "tailrace.doctor.verify", "tailrace.node.message_store")
ORDER_MAX = 200_000


class Running:
    """A command that runs, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, words, files, *, env=None, cwd=None, umask=None):
        """``files`` are the descriptors of its standard streams.

        ``env`` has variables beside those of this process; one that is None is not there.
        """
        self.args, self.returncode, self.stdout = ["tailrace", *map(str, words)], None, None
        self._said, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None}
        order = {"words": self.args[1:], "env": variables, "cwd": str(cwd or os.getcwd()), "umask": umask}
        with theirs:
            socket.send_fds(_forks(), [json.dumps(order).encode()], [*files, theirs.fileno()])
        self.pid = int(self._said.recv(100))

    def wait(self, timeout=None):
        """Return the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            self._said.settimeout(timeout)
            try:
                self.returncode = int(self._said.recv(100))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            self._said.close()
        return self.returncode

    def poll(self):
        """Return the exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.stdout is not None:
            self.stdout.close()
        self.wait()


def start(*words, stderr, env=None):
    """Start a command whose output is read from ``stdout``, as text; ``stderr`` is a file."""
    ours, theirs = os.pipe()
    with open(os.devnull) as nothing, open(theirs, "w") as output:
        made = Running(words, [nothing.fileno(), output.fileno(), stderr.fileno()], env=env)
    made.stdout = open(ours)  # noqa: SIM115 - closed with the command
    return made


def popen(words, *, stdout, stderr, text):
    """Start a server as `tailrace.pytest_plugin` does by `subprocess.Popen`."""
    python = [sys.executable, "-X", "faulthandler", "-m", "tailrace.cli"]
    assert (words[:len(python)], stdout, text) == (python, subprocess.PIPE, True)
    return start(*words[len(python):], stderr=stderr, env={"PYTHONFAULTHANDLER": "1"})


def run(*words, env=None, cwd=None, umask=None, stdin=subprocess.DEVNULL, timeout=60):
    """Run a command to its end, as `subprocess.run` with ``capture_output`` and ``text``.

    ``env`` has variables beside those of this process. Raises TimeoutExpired after ``timeout`` seconds.
    """
    with contextlib.ExitStack() as stack:
        if stdin == subprocess.DEVNULL:
            stdin = stack.enter_context(open(os.devnull)).fileno()
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        running = Running(words, [stdin, out.fileno(), err.fileno()], env=env, cwd=cwd, umask=umask)
        try:
            code = running.wait(timeout)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(running.args, code, *texts)


@functools.cache
def _forks():
    """Return the socket to the process that makes copies of itself. It ends with this one, which closes the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ORDER_MAX)
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # a stream that began as a file would try to seek in a pipe
    theirs.close()

    def stop():
        ours.close()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        process.wait()

    atexit.register(stop)
    return ours


def _next_order(orders):
    """Return the next order in a copy of this process; the process itself returns None when the tests have ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the watchers
    while True:
        text, files, _, _ = socket.recv_fds(orders, ORDER_MAX, 4)
        if not text:
            return None
        if not os.fork():
            break
        for file in files:
            os.close(file)
    orders.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answer = socket.socket(fileno=files.pop())
    pid = os.fork()
    if pid:  # the watcher
        for file in files:
            os.close(file)
        answer.send(b"%d" % pid)
        answer.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    answer.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return json.loads(text)


def _serve(descriptor):
    del sys.path[0]  # the folder of this file
    for name in IMPORTED:
        importlib.import_module(name)
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(sys.modules["tailrace.cli.app"].app)
    gc.freeze()
    order = _next_order(socket.socket(fileno=descriptor))
    if order is not None:
        os.environ.clear()
        os.environ.update(order["env"])
        if "PYTHONFAULTHANDLER" in order["env"]:
            faulthandler.enable()
        os.chdir(order["cwd"])
        if order["umask"] is not None:
            os.umask(order["umask"])
        sys.path.insert(0, order["cwd"])
        sys.argv = ["tailrace", *order["words"]]
        runpy.run_module("tailrace.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
