"""Count the phrases that docs/contributing/writing.md tells not to write; fail when a file has more than before.

Searched are documents, comments, docstrings, files of ``deploy`` and the Makefile, and in ``src`` every text with
a space in it: help, errors and log lines. Code in documents is left out, and so are generated documents. The words
for users are searched in ``src`` and in the documents outside ``docs/contributing``. ``words_allowed.tsv`` has
the number of phrases of each file. A number may only fall: a file with fewer fails as well, until ``--update`` has
written the lower number. ``--reset`` writes every number as it is, for a merge of texts that were written without
this check. ``--show PATH ...`` prints the places in some files or folders.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import sample_sentences  # noqa: E402

WRITING = ROOT / "docs" / "contributing" / "writing.md"
ALLOWED = ROOT / "tools" / "words_allowed.tsv"
LONGEST = 30
"""Words of a sentence in a paragraph or list item. A colon ends a sentence; a piece of code is one word."""
_NAME = re.compile(r"``[^`\n]+``")
_VALUE = re.compile(r"(?:is|are)\s+None")
"""The value of Python, which is not the word."""
_NEXT_COMMENT = re.compile(r"\n[ \t]*#")
_TOO = re.compile(r",\s+too(?=\s*(?:[.,:;)|]|\Z|\n\s*\n))")
"""A comma and ``too`` at the end of a clause: not "too many"."""
_WHAT = re.compile(
    r"What(?:(?<=[.!?]\sWhat)|(?<=\n\nWhat)|(?<=\n- What)|(?<=[.!?]\n What)|(?<=[.!?]\n {4}What)|(?<=[.!?]\n {8}What))"
    r"\s+(?!to\b)[^?!.|]*?(?:[.!|]|\Z)")
"""A sentence with ``What`` as its subject: it ends without a question mark. Headings and cells are left alone."""
_START = re.compile(r"\A# .*\n+((?:After reading|Read th|Look up|This (?:page|section) )[^\n]*)")
"""A page whose first sentence is about reading."""


class Words(NamedTuple):
    """The phrases of all texts, and those of texts for users."""

    everywhere: re.Pattern[str]
    users: re.Pattern[str]


def phrases(rules: str, heading: str) -> list[str]:
    """Return the quoted phrases of the right column of the table of words below a heading."""
    section = rules.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    return sorted({p for row in rows for p in re.findall(r"`([^`]+)`", row[2])}, key=len, reverse=True)


def pattern(words: list[str]) -> re.Pattern[str]:
    """Return what finds any of the phrases, also over the end of a line."""
    alternatives = "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in words)
    return re.compile(rf"\b(?:{alternatives})\b", re.IGNORECASE)


def rules() -> Words:
    """Return the patterns of ``docs/contributing/writing.md``."""
    text = WRITING.read_text()
    return Words(pattern(phrases(text, "Words")), pattern(phrases(text, "Words in texts for users")))


def _letters(found: re.Match[str]) -> str:
    return "x" * len(found[0])


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield comments; those of lines that follow each other are one text."""
    first, lines, last = 0, [""], (-1, 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start == (last[0] + 1, last[1]) and not token.line[:token.start[1]].strip():
            lines.append(token.string.lstrip("#"))
        else:
            yield first, "\n".join(lines)
            first, lines = token.start[0], [token.string.lstrip("#")]
        last = token.start
    yield first, "\n".join(lines)


def _python(text: str, *, messages: bool) -> Iterator[tuple[int, str]]:
    for line, comment in _comments(text):
        yield line, _NAME.sub(_letters, comment)
    alone = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(found))):
                alone.add(id(node.value))
                yield node.lineno, _NAME.sub(_letters, found)
            case ast.Constant(value=str(found)) if messages and " " in found and id(node) not in alone:
                yield node.lineno, found


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that are searched, with the line where each starts."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from _python(text, messages=path.is_relative_to(ROOT / "src"))
    elif path.suffix != ".md":
        yield 1, text
    elif not text.startswith(sample_sentences.GENERATED):
        yield 1, sample_sentences.CODE.sub(_letters, sample_sentences.FENCED.sub(sample_sentences.blank, text))


def files() -> list[Path]:
    """Return every file that is searched."""
    found = [ROOT / "Makefile", ROOT / "mkdocs.yml", *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    found += [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    found += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "packages").rglob("*.md")]
    for folder in ("src", "packages", "tests", "tools", "benchmarks", "deploy", "examples"):
        found += [
            path for path in (ROOT / folder).rglob("*.py")
            if not {"conformance", "reference"} & set(path.relative_to(ROOT).parts[:-1])]
    return sorted(path for path in found if path != WRITING and path.name != "history-0.1.md")


def for_users(path: Path) -> bool:
    """Return whether users read the texts of a file: documents outside ``contributing``, and all of ``src``."""
    folder = path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""
    return (
        folder in {"src", "docs", "deploy", "examples", "packages", "README.md", "SECURITY.md", "CHANGELOG.md"}
        and "contributing" not in path.parts)


def _long_sentences(text: str) -> Iterator[tuple[int, str]]:
    for line, sentence in sample_sentences.sentences(text, ends=".?!:"):
        if (count := sample_sentences.words(sentence)) > LONGEST:
            yield line, f"a sentence of {count} words"


def search(path: Path, words: Words) -> list[tuple[int, str]]:
    """Return line and phrase of each place in a file."""
    whole = path.read_text()
    patterns = [words.everywhere, _TOO, *([words.users] if for_users(path) else [])]
    places: list[tuple[int, str]] = []
    prose = path.suffix == ".md" and not whole.startswith(sample_sentences.GENERATED)
    if prose:
        places += _long_sentences(whole)
        places += [(3, "first sentence: " + found[1][:30]) for found in _START.finditer(whole)]
    if path.suffix in {".md", ".py"}:
        patterns.append(_WHAT)
    joined = _NEXT_COMMENT.sub("\n", whole)
    if not any(each.search(joined) for each in patterns):
        return places  # to read the text is all that most files take
    for line, text in texts(path):
        for each in patterns:
            places += [
                (line + text.count("\n", 0, found.start()),
                 " ".join(found[0].split())[:40])
                for found in each.finditer(text) if not _VALUE.fullmatch(found[0])]
    return sorted(places)


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
                f"{path}: {len(places)} places that docs/contributing/writing.md refuses, {most} are allowed ({shown})")
        elif len(places) < most:
            problems.append(
                f"{path}: {len(places)} places and {most} are allowed, run tools/check_words.py --update")
    return problems


def main(arguments: list[str]) -> int:
    """Compare, or do what the first argument says; 1 if a number differs."""
    words = rules()
    if arguments[:1] == ["--show"]:
        chosen = {Path(name).resolve() for name in arguments[1:]}
        for path in files():
            if chosen & {path, *path.parents}:
                for line, phrase in search(path, words):
                    print(f"{path.relative_to(ROOT)}:{line}: {phrase}")
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
