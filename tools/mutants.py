"""Plant random faults in the store, the timers and the node, and see which of them no test notices.

    make mutants SEED=7 RUNS=200

The tests run once under coverage.py, which tells the tests that execute each line. Then RUNS faults
are drawn from the seed. Each fault changes one place of one file, and the tests that execute its
line run until one of them fails. A fault that no test notices is printed with its diff and the
number of tests that passed with it. The exit code is 1 if there was one.

The tool works on a copy of the checkout in a temporary directory. It needs ``coverage``, which the
development environment does not have: ``.venv/bin/pip install coverage``.

Further environment variables:
    ROOMS   rooms in which faults are planted, separated by spaces; default: store timer node
    QUICK   1 leaves out tests that take more than 3 s, if a line has others
    TREE    a directory that keeps the copy and the tests of each line for the next run. The copy is
            not renewed: delete the directory after a change of the checkout.
    FROM    number of the first fault that is planted; an interrupted run continues there
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("store", "timer", "node")
TESTS = ("tests/unit/store", "tests/unit/timer", "tests/unit/node", "tests/crash")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}
SLOW_S = 3.0
"""Tests that take longer run only if every other test has passed, and not with QUICK=1."""
BASE_S, FACTOR = 60.0, 6.0
"""A run of tests that takes longer than this, and this many times its usual time, hangs."""


class Fault(NamedTuple):
    """One changed place."""

    path: Path
    line: int
    kind: str
    text: str
    """The whole file with the fault."""


class Test(NamedTuple):
    """A test function and what is known about it."""

    node_id: str
    seconds: float
    lines: int
    """How many lines of the rooms it executes; a test of few lines is the most specific one."""


# -- faults

def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what a node could be mistaken for: kind and new node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        swapped = COMPARISONS[type(node.ops[0])]()
        yield "comparison", ast.Compare(node.left, [swapped, *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and/or", ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
        yield "condition", node.test
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "dropped call", ast.Constant(None)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"min", "max"}:
        name = "max" if node.func.id == "min" else "min"
        yield "min/max", ast.Call(ast.Name(name), node.args, node.keywords)


def is_skipped(node: ast.AST) -> bool:
    """Return True for places whose change is no fault: annotations, log lines, assertions."""
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
        return True
    call = node.value if isinstance(node, ast.Expr) else node
    return (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            and call.func.attr == "log" and ast.unparse(call.func.value).startswith("events."))


def nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in which faults are planted."""
    if is_skipped(node):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes_of(child)


def faults_of(path: Path) -> list[Fault]:
    """Return every fault that can be planted in a file."""
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = source.encode()
    found = []
    for node in nodes_of(ast.parse(source)):
        for kind, new in changes(node):
            place: ast.AST = node
            if kind == "condition":
                place, text = new, f"(not ({ast.unparse(new)}))"
            else:
                text = ast.unparse(ast.fix_missing_locations(new))
                text = text if kind in {"dropped call", "constant"} else f"({text})"
            begin = starts[place.lineno - 1] + place.col_offset  # type: ignore[attr-defined]
            end = starts[place.end_lineno - 1] + place.end_col_offset  # type: ignore[attr-defined]
            changed = (raw[:begin] + text.encode() + raw[end:]).decode()
            try:
                ast.parse(changed)
            except SyntaxError:
                continue
            found.append(Fault(path, node.lineno, kind, changed))  # type: ignore[attr-defined]
    return found


# -- which test executes which line

def measure(tree: Path) -> dict[tuple[str, int], list[Test]]:
    """Run the tests once; return the tests of each line of the rooms."""
    settings, data, junit = tree / "coverage.ini", tree / "coverage.data", tree / "junit.xml"
    settings.write_text(f"[run]\ndynamic_context = test_function\nsource = tailrace\ndata_file = {data}\n")
    run = subprocess.run(
        [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q",
         "-p", "no:cacheprovider", f"--junitxml={junit}", *TESTS],
        cwd=tree, env=environment(tree), check=False)
    if run.returncode:
        sys.exit("mutants: tests fail without a fault; mend them first, or every fault counts as noticed")
    coverage = importlib.import_module("coverage")  # only this tool needs it
    seconds: dict[str, float] = {}
    for case in ET.parse(junit).iter("testcase"):
        name = f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time") or 0)
    found = coverage.CoverageData(str(data))
    found.read()
    lines_of: dict[str, set[tuple[str, int]]] = {}
    for file in found.measured_files():
        relative = os.path.relpath(file, tree)
        if relative.split(os.sep)[2:3] and relative.split(os.sep)[2] in ROOMS:
            for line, contexts in found.contexts_by_lineno(file).items():
                for context in contexts:
                    if context:
                        lines_of.setdefault(context, set()).add((relative, line))
    collected = ids_of_tests(tree)
    tests: dict[tuple[str, int], list[Test]] = {}
    for context, places in lines_of.items():
        node_id = node_id_of(tree, context)
        if node_id not in collected:
            continue  # a fixture's context, for example: pytest would fail because there is no such test
        test = Test(node_id, seconds.get(context, 1.0), len(places))
        for place in places:
            tests.setdefault(place, []).append(test)
    return tests


def ids_of_tests(tree: Path) -> set[str]:
    """Return pytest's ids of all test functions."""
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=tree, env=environment(tree), check=True, capture_output=True, text=True).stdout
    return {line.partition("[")[0] for line in told.splitlines() if "::" in line}


def node_id_of(tree: Path, context: str) -> str | None:
    """Return pytest's id of a test function from its dotted name; None if it is not one."""
    parts = context.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        path = Path(*parts[:cut]).with_suffix(".py")
        if (tree / path).is_file():
            return "::".join([str(path), *parts[cut:]])
    return None


# -- running

def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def verdict(tree: Path, fault: Fault, tests: list[Test]) -> str:
    """Plant a fault, run its tests until one fails, take the fault out."""
    tests = sorted(tests, key=lambda test: (test.seconds > SLOW_S, test.lines, test.node_id))
    if os.environ.get("QUICK") == "1":
        tests = [test for test in tests if test.seconds <= SLOW_S] or tests[:1]
    limit = BASE_S + FACTOR * sum(test.seconds for test in tests)
    before = fault.path.read_text()
    fault.path.write_text(fault.text)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
             *[test.node_id for test in tests]],
            cwd=tree, env=environment(tree), timeout=limit, check=False, capture_output=True)
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        fault.path.write_text(before)
    return "noticed" if done.returncode else "SURVIVES"


def main() -> int:
    if importlib.util.find_spec("coverage") is None:
        sys.exit("mutants: the package coverage is missing; run .venv/bin/pip install coverage")
    seed, runs = int(os.environ.get("SEED", "1")), int(os.environ.get("RUNS", "200"))
    rooms = os.environ.get("ROOMS", " ".join(ROOMS)).split()
    with tempfile.TemporaryDirectory(prefix="tailrace-mutants-") as temporary:
        tree = Path(os.environ.get("TREE") or temporary) / "tree"
        if not tree.exists():
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".git", "build", "__pycache__"))
        kept = tree / "tests-of-lines.json"
        if kept.exists():
            tests = {(f, int(n)): [Test(*t) for t in ts] for f, n, ts in json.loads(kept.read_text())}
        else:
            tests = measure(tree)
            kept.write_text(json.dumps([[f, n, ts] for (f, n), ts in tests.items()]))
        drawn = random.Random(seed)
        files = [path for room in rooms for path in sorted((tree / "src/tailrace" / room).glob("*.py"))]
        faults = [fault for path in files for fault in faults_of(path)
                  if (str(path.relative_to(tree)), fault.line) in tests]
        drawn.shuffle(faults)
        counts: dict[str, int] = {}
        print(f"seed={seed} faults={len(faults)} drawn={min(runs, len(faults))}", flush=True)
        for number, fault in enumerate(faults[:runs], 1):
            if number < int(os.environ.get("FROM", "1")):
                continue
            name = str(fault.path.relative_to(tree))
            began = time.monotonic()
            said = verdict(tree, fault, tests[name, fault.line])
            counts[said] = counts.get(said, 0) + 1
            print(f"{number} {said} {name}:{fault.line} {fault.kind} "
                  f"tests={len(tests[name, fault.line])} {time.monotonic() - began:.0f} s", flush=True)
            if said == "SURVIVES":
                print("".join(difflib.unified_diff(
                    fault.path.read_text().splitlines(keepends=True), fault.text.splitlines(keepends=True),
                    n=1)), flush=True)
        print(" ".join(f"{key}={value}" for key, value in sorted(counts.items())), f"seed={seed}")
    return 1 if counts.get("SURVIVES") else 0


if __name__ == "__main__":
    sys.exit(main())
