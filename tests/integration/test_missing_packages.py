"""Every command works without the optional packages, or ends with exit code 3 and names the extra to install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command_lists import READING, calls, every_command

from tailrace import Message, MessageStore
from tailrace.cli.problems import EXTRAS

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
MODULES = {
    "pyyaml": "yaml", "grpcio": "grpc", "grpcio-status": "grpc_status", "protobuf": "google",
    "rocketmq-python-client": "rocketmq", "opentelemetry-api": "opentelemetry"}
"""Module of a package that has another name."""
NOT_OF_COMMANDS = {"docs", "dev"}
NEEDS = {
    "acl import STORE FILE": "acl", "serve OUT --grpc 127.0.0.1:0": "grpc",
    "serve OUT --listen 127.0.0.1:0 --namesrv-listen none --config TLS": "tls",
    "recover STORE --spark": "spark", "pipeline rebuild STORE": "spark", "pipeline restore OUT STORE2": "arrow",
    "pipeline compact OUT --table lake": "spark", "pipeline expire OUT --table lake": "spark",
    "pipeline forget OUT --table lake --topic orders --proof P": "spark",
    **{" ".join(words): "sql" for words in calls(on_spark=False) if words[0] == "sql"},
} | {" ".join(words): "spark" for words in calls(on_spark=True)}
"""Commands that need a package, with its extra."""
RUNNER = """
import contextlib, io, json, sys
hidden = set(json.loads(sys.argv[1]))
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
from tailrace.cli import main
class Out(io.TextIOWrapper):
    def __init__(self): super().__init__(io.BytesIO(), write_through=True)
for words in json.loads(sys.argv[2]):
    sys.argv = ["tailrace", *words]
    out, err, code = Out(), Out(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: main()
        except SystemExit as ended: code = ended.code or 0
    print(json.dumps([code, err.buffer.getvalue().decode()]), flush=True)
"""


def needed():
    """(extra, module) of each optional package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [(extra, re.match(r"[\w-]+", line)[0]) for extra, lines in extras.items() for line in lines]
    return {(extra, MODULES.get(name, name)) for extra, name in names if extra not in NOT_OF_COMMANDS}


def test_every_optional_package_has_its_extra():
    assert {module for _, module in needed()} == {*EXTRAS}
    assert {(extra, module) for module, extra in EXTRAS.items()} <= needed()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing")
    with MessageStore.open(folder / "store") as store:
        store.put(Message(topic="orders", body=b"x", keys=["k7"]))
    (folder / "plain_acl.yml").write_text("accounts: []\n")
    (folder / "tls.conf").write_text("tls.server.mode=enforcing\ntls.test.mode.enable=true\n")
    names = {"STORE": "store", "FILE": "plain_acl.yml", "TLS": "tls.conf", "STORE2": "store2"}

    def call(hidden, commands):
        wanted = [
            [str(folder / f"out{number}") if word == "OUT" else
             str(folder / names[word]) if word in names else word for word in words]
            for number, words in enumerate(commands)]
        done = subprocess.run(
            [sys.executable, "-c", RUNNER, json.dumps(sorted(hidden)), json.dumps(wanted)], capture_output=True,
            text=True, check=False, timeout=180,
            env={**os.environ, "TAILRACE_CONNECTIONS": "/nowhere", "NAMESRV_ADDR": "127.0.0.1:1"})
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]
    return call


def test_commands_without_a_package_name_its_extra(run):
    commands = [words.split() for words in NEEDS]
    for words, (code, error) in zip(commands, run(EXTRAS, commands), strict=True):
        assert code == 3, (words, error)
        assert f"pip install '.[{NEEDS[' '.join(words)]}]'" in error, (words, error)
        assert len(error.splitlines()) == 1, (words, error)


def test_all_other_commands_need_no_optional_package(run):
    commands = [words for words in calls(on_spark=False) if " ".join(words) not in NEEDS]
    for words, (code, error) in zip(commands, run(EXTRAS, commands), strict=True):
        assert code != 3, (words, error)
        assert "Traceback" not in error, (words, error)


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "pandas"])
def test_each_package_of_spark_is_named_alone(run, module):
    [(code, error)] = run([module], [["pipeline", "audit", "STORE"]])
    text = f"tailrace: jobs on Spark need the package {module}: pip install '.[spark]' in the checkout"
    assert (code, error) == (3, f"{text}\n")


def test_the_package_of_tables_is_named_before_spark_starts(run):
    [(code, error)] = run(["pyiceberg"], [["pipeline", "archive", "STORE", "OUT", "--table", "lake"]])
    text = "tailrace: tables of Iceberg need the package pyiceberg: pip install '.[lake]' in the checkout"
    assert (code, error) == (3, f"{text}\n")


def test_every_command_of_spark_is_tried():
    tried = {" ".join(words.split()[:2]) for words in NEEDS}
    assert {name for name in every_command() if name.startswith("pipeline ")} <= tried
    assert {name for name in READING if name.startswith("pipeline ")} <= tried
