"""What grows with names, clients or messages has a bound: ``tests/tables.md`` lists every such table of a server.

The criterion is mechanical: a dict, set or deque that starts empty in a constructor, or at the level of a module, and
a function with ``lru_cache``, in the rooms below. A deque with ``maxlen`` has its bound in the source. A table that
keeps text of clients also has a bound in bytes: a name that was not checked may be as long as a request.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tailrace"
ROOMS = (
    "auth", "broker", "env", "filters", "formats", "namesrv", "node", "observe", "proxy", "remoting", "requests",
    "segments", "store", "timer")
TABLES = ROOT / "tests" / "tables.md"
KINDS = {
    "Counter", "OrderedDict", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "defaultdict", "deque", "dict",
    "set"}
CACHES = {"lru_cache", "cache"}
CLIENT_TEXT = re.compile(r"-|\d+ (bytes|KiB|MiB) (each|in all)")
"""Bytes of the text of clients in a table: of one entry or of all together; ``-`` for a table without such text."""
CLIENT_WORDS = re.compile(r"user|client|topic|group|kinds of|names|fields|keys|expressions|subscriptions|requests")
OWN_WORDS = re.compile(r"in the code|at the start")
"""In the bound of a table whose names are not those of clients."""
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


def is_cached(function: ast.FunctionDef) -> bool:
    """Return True for a function whose results are remembered by its arguments."""
    for decorator in function.decorator_list:
        made = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = made.id if isinstance(made, ast.Name) else made.attr if isinstance(made, ast.Attribute) else ""
        if name in CACHES:
            return True
    return False


def assigned(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (target, value) of every assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node.value


@functools.cache
def tables_of(text: str) -> list[str]:
    """Return the tables of a module: names of the module, and CLASS.ATTRIBUTE of constructors."""
    return list(_tables_of(text))


def _tables_of(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target, value in assigned(node):
                if isinstance(target, ast.Name) and is_empty_table(value):
                    yield target.id
        if isinstance(node, ast.FunctionDef) and is_cached(node):
            yield node.name
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


def listed() -> dict[tuple[str, str], tuple[str, str, str]]:
    """Return what the list says: what a table grows with, its bound, and the bytes of text of clients in it."""
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")]
            for line in TABLES.read_text("utf-8").splitlines() if re.match(r"\| `", line)]
    return {(row[0], row[1]): (row[2], row[3], row[4] if len(row) > 4 else "") for row in rows}


def test_every_table_has_a_bound_in_the_list():
    missing = found() - listed().keys()
    assert not missing, f"new tables need a row in {TABLES.name} that says what bounds them: {sorted(missing)}"
    gone = listed().keys() - found()
    assert not gone, f"no such tables: {sorted(gone)}"
    assert all(grows and bound for grows, bound, _ in listed().values())


def without_bytes() -> list[tuple[str, str]]:
    """Return the tables that do not say how many bytes of text of clients they keep, or say none and have names."""
    return [
        table for table, (grows, bound, text) in listed().items()
        if not CLIENT_TEXT.fullmatch(text)
        or (text == "-" and CLIENT_WORDS.search(grows) and not OWN_WORDS.search(bound))]


def test_every_table_that_keeps_text_of_clients_has_a_bound_in_bytes():
    assert not without_bytes(), f"the last column of {TABLES.name} is '-', 'N KiB each' or 'N MiB in all'"


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
    ("@lru_cache(9)\ndef f(a):\n pass\n@functools.cache\ndef g(a):\n pass\n@property\ndef h(a):\n pass", ["f", "g"]),
])
def test_tables_are_recognised(text, tables):
    assert list(tables_of(text)) == tables


def test_removed_and_new_tables_are_noticed(monkeypatch):
    rows = listed()
    monkeypatch.setitem(globals(), "listed", lambda: dict(list(rows.items())[1:]))
    with pytest.raises(AssertionError, match="new tables need a row"):
        test_every_table_has_a_bound_in_the_list()
    monkeypatch.setitem(globals(), "listed", lambda: {**rows, ("x.py", "A.b"): ("x", "y", "-")})
    with pytest.raises(AssertionError, match="no such tables"):
        test_every_table_has_a_bound_in_the_list()


@pytest.mark.parametrize("row", [
    ("names", "a number", "-"), ("users", "a number", ""), ("positions", "a number", ""), ("keys", "a number", "many"),
])
def test_a_table_without_bytes_is_noticed(monkeypatch, row):
    rows = listed()
    monkeypatch.setitem(globals(), "listed", lambda: {**rows, ("x.py", "A.b"): row})
    with pytest.raises(AssertionError, match="the last column"):
        test_every_table_that_keeps_text_of_clients_has_a_bound_in_bytes()
