"""A missing extra is named, with the exit code of the table; a start without compiled kernels says one line."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.integration]
HIDE = """\
import os, sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(tuple(os.environ.get("HIDDEN", "-").split())):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


@pytest.fixture
def environment(tmp_path, environment):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(HIDE)
    (tmp_path / "plain_acl.yml").write_text("accounts: []\n")
    environment["PYTHONPATH"] = str(tmp_path / "modules")
    environment.pop("TAILRACE_INTERPRETED", None)
    return environment


@pytest.mark.parametrize(("hidden", "command", "extra"), [
    ("yaml", "acl import store plain_acl.yml", "acl"), ("grpc", "serve store --grpc 127.0.0.1:0", "grpc"),
    ("pyspark", "recover store --spark", "spark")])
def test_the_extra_is_named_and_the_exit_code_is_three(shell, tmp_path, hidden, command, extra):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    shown = shell.run(f"HIDDEN={hidden} tailrace {command}; echo rc=$?")
    assert f"pip install '.[{extra}]'" in shown
    assert "rc=3" in shown


def test_kernels_that_are_not_compiled_are_one_line(shell):
    start = "HIDDEN=tailrace.kernels._compiled. tailrace serve store --listen 127.0.0.1:0 --namesrv-listen none"
    shown = shell.run(f"{start} & until test -f store/tailrace/serve.json; do sleep 0.1; done; kill $!; wait $!")
    assert len([line for line in shown.splitlines() if "kernel" in line]) == 1
    assert "the kernels run interpreted" in shown
