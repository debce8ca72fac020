"""Count the phrases that docs/reference/glossary.md tells not to write; fail when a file has more than before.

Searched are documents, comments, docstrings, and in ``src`` every text with a space in it: help, errors
and log lines. Code in documents is left out, and so are generated documents. ``words_allowed.tsv`` has
the number of phrases of each file. A number may only fall: a file with fewer fails as well, until
``--update`` has written the lower number. ``--reset`` writes every number as it is, for a merge of texts
that were written without this check. ``--show PATH ...`` prints the lines of some files.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
ALLOWED = ROOT / "tools" / "words_allowed.tsv"
GENERATED = "<!-- Written by `make gen`"
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_VALUE = re.compile(r"(?:is|are)\s+None")
"""The value of Python, which is not the word."""


def phrases(glossary: str) -> list[str]:
    """Return the quoted phrases of the right column of the table of words."""
    table = glossary.partition("| write | not |")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")]
    return sorted({p for row in rows for p in re.findall(r"`([^`]+)`", row[2])}, key=len, reverse=True)


def pattern(words: list[str]) -> re.Pattern[str]:
    """Return what finds any of the phrases, also over the end of a line."""
    alternatives = "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in words)
    return re.compile(rf"\b(?:{alternatives})\b", re.IGNORECASE)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _python(text: str, *, messages: bool) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    alone = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(found))):
                alone.add(id(node.value))
                yield node.lineno, found
            case ast.Constant(value=str(found)) if messages and " " in found and id(node) not in alone:
                yield node.lineno, found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that are searched, with the line where each starts."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from _python(text, messages=path.is_relative_to(ROOT / "src"))
    elif not text.startswith(GENERATED):
        yield 1, _CODE.sub(_blank, _FENCED.sub(_blank, text))


def files() -> list[Path]:
    """Return every file that is searched."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for folder in ("src", "tests", "tools", "benchmarks"):
        found += [
            path for path in (ROOT / folder).rglob("*.py")
            if not {"conformance", "reference"} & set(path.relative_to(ROOT).parts[:-1])]
    return sorted(path for path in found if path != GLOSSARY)


def search(path: Path, words: re.Pattern[str]) -> list[tuple[int, str]]:
    """Return line and phrase of each place in a file."""
    if not words.search(path.read_text()):
        return []  # to read the text is all that most files take
    return sorted(
        (line + text.count("\n", 0, found.start()), " ".join(found[0].split()))
        for line, text in texts(path) for found in words.finditer(text) if not _VALUE.fullmatch(found[0]))


def _read() -> dict[str, int]:
    rows = ALLOWED.read_text().splitlines() if ALLOWED.exists() else []
    return {path: int(count) for count, _, path in (row.partition("\t") for row in rows)}


def _write(counts: dict[str, int]) -> None:
    ALLOWED.write_text("".join(f"{count}\t{path}\n" for path, count in sorted(counts.items()) if count))


def compare(found: dict[str, list[tuple[int, str]]], allowed: dict[str, int]) -> list[str]:
    """Return a line for each file whose number of places is not the allowed one."""
    problems = []
    for path in sorted(found.keys() | allowed.keys()):
        places, most = found.get(path, []), allowed.get(path, 0)
        if len(places) > most:
            shown = ", ".join(f"{line}: {phrase}" for line, phrase in places[:12])
            problems.append(
                f"{path}: {len(places)} phrases of the right column of docs/reference/glossary.md, {most} are "
                f"allowed ({shown})")
        elif len(places) < most:
            problems.append(
                f"{path}: {len(places)} phrases and {most} are allowed, run tools/check_words.py --update")
    return problems


def main(arguments: list[str]) -> int:
    """Compare, or do what the first argument says; 1 if a number differs."""
    words = pattern(phrases(GLOSSARY.read_text()))
    if arguments[:1] == ["--show"]:
        for name in arguments[1:]:
            for line, phrase in search(Path(name).resolve(), words):
                print(f"{name}:{line}: {phrase}")
        return 0
    found = {str(path.relative_to(ROOT)): search(path, words) for path in files()}
    counts = {path: len(places) for path, places in found.items()}
    if arguments == ["--reset"]:
        _write(counts)
    elif arguments == ["--update"]:
        allowed = _read()
        _write({path: min(allowed.get(path, 0), count) for path, count in counts.items()})
    problems = compare(found, _read())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
