"""Compare the documents that name code with the code: modules, functions, tests, labels, files.

The documents of ``CHECKED`` name parts of the source as ``room.module.Class.method`` and tests as
``tests/path.py`` or ``tests/path.py::test_name``, each in backquotes. Every such name must exist. In
all documents a path that starts with ``tests/``, ``tools/``, ``benchmarks/`` or a room, and that ends with
``.py``, must exist. Every rule label in comments, docstrings and documents must be a row of
``docs/contributing/design/rules.md`` or ``beyond-the-reference.md``, and no label may be defined by two modules.
Nothing is imported: names are looked up in the syntax trees of the files.

The documents of ``LINES`` have a limit of lines, and the pages that the navigation of the site has for users
one of words together. A word is a token with a letter or a digit.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "tailrace"
RULES = ROOT / "docs" / "contributing" / "design" / "rules.md"
WEAKNESSES = ROOT / "docs" / "contributing" / "design" / "beyond-the-reference.md"
CHECKED = (
    "docs/contributing/design/rules.md", "docs/contributing/design/beyond-the-reference.md",
    "docs/contributing/design/mechanisms.md",
    "docs/contributing/design/architecture.md", "docs/contributing/design/data-files.md",
    "docs/explanation/guarantees.md",
)
LINES = {"README.md": 120, "docs/explanation/performance.md": 120, "CHANGELOG.md": 60}
LINE_OF_CHANGES = 200
"""Maximum length of a line of CHANGELOG.md."""
WORDS = 60_000
"""Maximum number of words in the user's navigation: every page of mkdocs.yml before the group Contributing."""
_QUOTED = re.compile(r"`([^`\n]+)`")
_DOTTED = re.compile(r"[a-z_]+(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
_TEST = re.compile(r"(tests/[\w/.-]+\.py)(?:::(\w+))?")
_PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.py")
# A label is one of these prefixes and a number. Other prefixes are names of test data.
_LABEL = re.compile(r"(?<![\w/.%-])(?:A|B|C|CF|CP|D|DL|F|FL|L|M|N|P|Q|RP|T|TL|TR|TW|TX|UR|W)[1-9]\d?(?!\.?\w|[%(-])")
_DEFINED = re.compile(r"^ {2,6}([A-Z]{1,2}[1-9]\d?)  \S", re.MULTILINE)
_ROW = re.compile(r"^\| ([A-Z]{1,2}[1-9]\d?) \|", re.MULTILINE)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _module(parts: tuple[str, ...]) -> Path | None:
    """Return the file of a module or package below ``src/tailrace``."""
    path = SOURCE.joinpath(*parts)
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from ((n.id, n) for n in ast.walk(target) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node


def _imported(path: Path, name: str) -> tuple[str, ...] | None:
    """Return the parts of the tailrace name that a module imports as ``name``."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tailrace"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return (*(node.module or "").split(".")[1:], alias.name)
    return None


def _attributes(path: Path, owner: ast.ClassDef) -> set[str]:
    """Return the names of a class: its own, its instances', and those of the classes it extends."""
    names = {name for name, _ in _bindings(owner.body)}
    names |= {
        node.attr for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name) and node.value.id == "self"}
    for node in owner.bases:
        base = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(base, ast.Name):
            found = _find((*path.relative_to(SOURCE).with_suffix("").parts, base.id))
            if found is None:
                imported = _imported(path, base.id)
                found = _find(imported) if imported else None
            if found and isinstance(found[1], ast.ClassDef):
                names |= _attributes(found[0], found[1])
    return names


def _find(parts: tuple[str, ...]) -> tuple[Path, ast.AST] | None:
    """Return the file and the node of a module, or of a name at the top level of one."""
    if path := _module(parts):
        return path, _tree(path)
    if len(parts) > 1 and (path := _module(parts[:-1])):
        node = dict(_bindings(_tree(path).body)).get(parts[-1])
        return (path, node) if node is not None else None
    return None


def exists(name: str) -> bool:
    """Return whether ``room.module``, ``room.module.name`` or ``room.module.Class.name`` exists."""
    parts = tuple(name.split("."))
    if _find(parts):
        return True
    owner = _find(parts[:-1]) if len(parts) > 2 else None
    return bool(
        owner and isinstance(owner[1], ast.ClassDef) and parts[-1] in _attributes(owner[0], owner[1]))


def rooms() -> frozenset[str]:
    """Return the first parts of names that are looked up."""
    return frozenset(
        path.stem for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()) - {"__init__"}


def _has_test(path: str, test: str | None) -> bool:
    if not (ROOT / path).is_file():
        return False
    return test is None or test in dict(_bindings(_tree(ROOT / path).body))


def missing_names(text: str) -> list[str]:
    """Return the names of code and tests in a checked document that do not exist."""
    first = rooms()
    missing = []
    for quoted in _QUOTED.findall(text):
        name = quoted.removesuffix("()")
        if test := _TEST.fullmatch(name):
            if not _has_test(test[1], test[2]):
                missing.append(quoted)
        elif _DOTTED.fullmatch(name) and name.split(".")[0] in first and not exists(name):
            missing.append(quoted)
    return missing


def missing_paths(text: str) -> list[str]:
    """Return the paths of Python files in a document that do not exist."""
    return [
        path for quoted in _QUOTED.findall(text) for path in _PATH.findall(quoted)
        if not any((base / path).is_file() for base in (ROOT, SOURCE, ROOT / "tests"))]


def comments_of(text: str) -> str:
    """Return the comments and docstrings of a module, a blank line between two of them."""
    parts = [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            # Attributes also have docstrings: any text that stands alone.
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) \
                    and isinstance(statement.value.value, str):
                parts.append(statement.value.value)
    return "\n\n".join(parts)


@functools.cache
def _labelled(path: Path) -> str:
    """Return the comments and docstrings of a file that may have a label, else nothing."""
    text = path.read_text()
    return comments_of(text) if _LABEL.search(text) else ""


def _python() -> Iterator[Path]:
    for folder in ("src", "packages", "tests", "tools", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not {"conformance", "reference"} & set(path.relative_to(ROOT).parts[:-1]):
                yield path


def documents() -> list[Path]:
    """Return every document that people write, in the order of their paths."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def label_problems(rules: str, weaknesses: str) -> list[str]:
    """Return labels without a row, rows of rules without a use, and labels that two modules define."""
    rows = _ROW.findall(rules)
    known = rows + _ROW.findall(weaknesses)
    problems = [f"{label} has two rows" for label in sorted(set(known)) if known.count(label) > 1]
    used: set[str] = set()
    defined: dict[str, str] = {}
    texts = {path: text for path in _python() if path != Path(__file__) and (text := _labelled(path))}
    texts |= {path: path.read_text() for path in documents() if path not in {RULES, WEAKNESSES}}
    for path, text in texts.items():
        where = str(path.relative_to(ROOT))
        for label in sorted(set(_LABEL.findall(text))):
            used.add(label)
            if label not in known:
                problems.append(f"{where}: {label} is in neither {RULES.name} nor {WEAKNESSES.name}")
        if path.suffix == ".py":
            for label in _DEFINED.findall(text):
                if label in defined:
                    problems.append(f"{where}: {defined[label]} defines {label}, too")
                defined[label] = where
    problems += [f"rules.md: no text uses {label}" for label in sorted(set(rows) - used)]
    return problems


def users_pages() -> list[str]:
    """Return the paths of the pages that the site shows to users, relative to ``docs``."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("  - Contributing:")[0]
    return re.findall(r"- (\S+\.md)", navigation)


def count_words(text: str) -> int:
    """Return the number of tokens of a text that have a letter or a digit."""
    return sum(any(map(str.isalnum, token)) for token in text.split())


def too_long(lines: dict[str, int], words: int) -> list[str]:
    """Return the documents with more lines than ``lines`` allows, and the navigation if it has too many words."""
    found = []
    for name, limit in lines.items():
        if (count := len((ROOT / name).read_text().splitlines())) > limit:
            found.append(f"{name}: {count} lines, at most {limit}")
    for number, line in enumerate((ROOT / "CHANGELOG.md").read_text().splitlines(), 1):
        if len(line) > LINE_OF_CHANGES:
            found.append(f"CHANGELOG.md:{number}: {len(line)} characters, at most {LINE_OF_CHANGES}")
    counts = {page: count_words((ROOT / "docs" / page).read_text()) for page in users_pages()}
    if sum(counts.values()) > words:
        longest = ", ".join(f"{page} {counts[page]:,}" for page in sorted(counts, key=counts.__getitem__)[:-6:-1])
        found.append(f"mkdocs.yml: {sum(counts.values()):,} words for users, at most {words:,} ({longest})")
    return found


def problems() -> list[str]:
    """Return everything in which documents and code differ."""
    found = []
    for path in documents():
        where, text = str(path.relative_to(ROOT)), path.read_text()
        if where in CHECKED:
            found += [f"{where}: {name} does not exist" for name in missing_names(text)]
        found += [f"{where}: {name} does not exist" for name in missing_paths(text)]
    return found + too_long(LINES, WORDS) + label_problems(RULES.read_text(), WEAKNESSES.read_text())


def main() -> int:
    """Print the differences; 1 if there are any."""
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
