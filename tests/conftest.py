"""For all tests."""

import functools
import gc
import logging
import os
import signal
import subprocess
import time
import types

import commands
import pytest
import typer.main
from caught import nothing_is_caught_silently  # noqa: F401 - a fixture for all tests
from file_scheduling import Scheduling, collects, has_parts
from hypothesis import settings

import tailrace.pytest_plugin

# An example has no time limit: the first one of a run imports modules, and the machine may be busy.
settings.register_profile("tailrace", deadline=None)
settings.load_profile("tailrace")

# Otherwise each call of the command line makes all commands again, which takes longer than most commands take.
typer.main.get_command = functools.cache(typer.main.get_command)

# Servers of its fixtures are copies of one process as well. Its own tests start it in another pytest, without this.
tailrace.pytest_plugin.subprocess = types.SimpleNamespace(Popen=commands.popen, PIPE=subprocess.PIPE)

# A JVM lives for seconds here: the second compiler and the threads of G1 cost more than they save.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(name, JVM)
# Without the last one each server of RocketMQ makes a key for a certificate when it starts, which takes seconds.
os.environ.setdefault("ROCKETMQ_JAVA_OPTS", f"-Xms256m -Xmx1g {JVM} -Dtls.server.mode=disabled")

# A store deletes expired files in the hour after four, and files of many tests expire immediately. So at that
# time tests live in another zone. Java knows its name as well.
if time.localtime().tm_hour in {3, 4}:
    os.environ["TZ"] = f"Etc/GMT{-(time.localtime().tm_gmtoff // 3600 + 6):+d}"
    time.tzset()

LONGEST = (
    "spark/", "interop/", "integration/test_pages_run.py", "integration/test_odd_files.py",
    "integration/test_dist.py", "integration/test_documents.py", "crash/test_store_failures.py", "crash/",
    "integration/")
"""Files that take longest start first, so that no worker waits for the other one at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a worker whether it alone collects a part of the files."""
    node.workerinput["has_part"] = has_parts(node.config.getvalue("dist"), node.config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Have a worker take one file after the other."""
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path, config):
    """Leave files to the worker that collects them alone."""
    worker = getattr(config, "workerinput", {})
    if not worker.get("has_part") or collection_path.suffix != ".py":
        return None
    number = int(worker["workerid"].removeprefix("gw"))
    name = collection_path.relative_to(config.rootpath).as_posix()
    return None if collects(name, number, worker["workercount"]) else True


def pytest_collection_finish():
    """Have the garbage collector look no more at what was collected, which is there until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def signals_are_not_ignored():
    """Commands inherit ignored signals, as under nohup or of a shell's job; tests start them as usual."""
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGINT, interrupt)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    """Forget PySpark's loggers after each phase.

    pytest gives its handler to each logger that does not propagate, and a logger of PySpark changes the format of a
    handler that it is given, so that later tests see their log as JSON.
    """
    try:
        return (yield)
    finally:
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            logging.root.manager.loggerDict.pop(name, None)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Have each worker begin to collect with another file of a folder.

    pytest compiles the assertions of a file, in four times as long as the rest of collecting it takes, and keeps the
    result on disk. In a fresh clone workers with the same order would do all of this at the same time, each for itself.
    """
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and report.passed and isinstance(collector, pytest.Directory):
        first = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = [*report.result[first:], *report.result[:first]]
    return report


def pytest_collection_modifyitems(items):
    """Put the longest files first, in the same order in each worker, and skip those of ``make long``."""

    def rank(item):
        file = item.nodeid.partition("::")[0]
        name = file.removeprefix("tests/")
        return next((number for number, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST)), file

    items.sort(key=rank)
    for item in items:
        if item.get_closest_marker("long") is not None and not os.environ.get("TAILRACE_LONG"):
            item.add_marker(pytest.mark.skip(reason="takes long: make long runs it"))
