"""What grows with names, clients or messages has a bound: ``tests/tables.md`` lists every such table of a server.

The criterion is mechanical: a dict, set or deque that starts empty in a constructor, or at the level of a module, in
the rooms below. A deque with ``maxlen`` has its bound in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tailrace"
ROOMS = ("auth", "broker", "env", "node", "proxy", "remoting", "segments", "store", "timer")
TABLES = ROOT / "tests" / "tables.md"
KINDS = {
    "Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "defaultdict", "deque", "dict",
    "set"}
FILLED = {"deque", "dict", "set"}
"""Calls that may copy something, which then says how long it is."""


def is_empty_table(node: ast.expr) -> bool:
    """Return True for an expression that makes an empty table without a bound."""
    if isinstance(node, ast.Dict):
        return not node.keys
    if not isinstance(node, ast.Call):
        return False
    made = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    name = made.id if isinstance(made, ast.Name) else made.attr if isinstance(made, ast.Attribute) else ""
    bounded = any(keyword.arg == "maxlen" for keyword in node.keywords)
    return name in KINDS and not bounded and not (name in FILLED and node.args)


def assigned(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (target, value) of every assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node.value


def tables_of(text: str) -> Iterator[str]:
    """Yield the tables of a module: names of the module, and CLASS.ATTRIBUTE of constructors."""
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target, value in assigned(node):
                if isinstance(target, ast.Name) and is_empty_table(value):
                    yield target.id
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    for target, value in assigned(part):
                        if isinstance(target, ast.Attribute) and is_empty_table(value):
                            yield f"{node.name}.{target.attr}"


def found() -> set[tuple[str, str]]:
    """Return (module, table) of the source."""
    paths = [*SOURCE.glob("*.py"), *(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))]
    return {
        (path.relative_to(SOURCE).as_posix(), table)
        for path in paths for table in tables_of(path.read_text("utf-8"))}


def listed() -> dict[tuple[str, str], tuple[str, str]]:
    """Return what the list says: what a table grows with, and its bound."""
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")]
            for line in TABLES.read_text("utf-8").splitlines() if re.match(r"\| `", line)]
    return {(module, table): (grows, bound) for module, table, grows, bound in rows}


def test_every_table_has_a_bound_in_the_list():
    missing = found() - listed().keys()
    assert not missing, f"new tables need a row in {TABLES.name} that says what bounds them: {sorted(missing)}"
    gone = listed().keys() - found()
    assert not gone, f"no such tables: {sorted(gone)}"
    assert all(grows and bound for grows, bound in listed().values())


CLASS = """
class A:
    def __init__(self):
        self.a: dict[str, int] = {}
        self.b = deque(maxlen=5)
        self.c = OrderedDict()
        self.d = set(x)
        self.e = deque[int]()
        self.f = collections.defaultdict(list)
"""


@pytest.mark.parametrize(("text", "tables"), [
    ("cache: dict[str, int] = {}\nLIMITS = {1: 2}\nseen = set()", ["cache", "seen"]),
    (CLASS, ["A.a", "A.c", "A.e", "A.f"]),
    ("class A:\n def f(self):\n  self.a = {}", []),
])
def test_tables_are_recognised(text, tables):
    assert list(tables_of(text)) == tables


def test_removed_and_new_tables_are_noticed(monkeypatch):
    rows = listed()
    monkeypatch.setitem(globals(), "listed", lambda: dict(list(rows.items())[1:]))
    with pytest.raises(AssertionError, match="new tables need a row"):
        test_every_table_has_a_bound_in_the_list()
    monkeypatch.setitem(globals(), "listed", lambda: {**rows, ("x.py", "A.b"): ("x", "y")})
    with pytest.raises(AssertionError, match="no such tables"):
        test_every_table_has_a_bound_in_the_list()
