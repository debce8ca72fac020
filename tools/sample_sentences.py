"""Draw sentences of running prose of the documents for users, to be rated by a reader who did not write them.

``tools/sample_sentences.py SEED [COUNT [PATH ...]]`` prints COUNT (40) sentences of README and of ``docs`` without
``docs/contributing``: paragraphs and list items, at least six words each. Code, tables, headings and generated
pages are left out. Rate each one: 1 clear, 2 needs a second reading, 3 unclear. At most 4 of 40 may have a 2 or 3.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = "<!-- Written by `make gen`"
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NO_PROSE = re.compile(r"^\s*(?:[|#>]|:::|!\[|<| {4,}|\[[^\]]+\]:).*$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`\n]+`")
_BLOCK = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*]|\d+\.) )")
_MARKER = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_END = re.compile(r"(?<=[.?!:;])[\"')*_]*\s+(?=\S)")
_WORD = re.compile(r"\S*\w\S*")
_SHORT = re.compile(r"(?:e\.g|i\.e|etc|vs|cf|No)\.$")


def blank(found: re.Match[str]) -> str:
    """Return spaces of the same length; the ends of lines stay, so that numbers of lines do."""
    return re.sub(r"[^\n]", " ", found[0])


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and list item of a page with the number of its first line."""
    for unwanted in (FENCED, _COMMENT, _NO_PROSE):
        text = unwanted.sub(blank, text)
    start = 0
    for end in [*(found.start() for found in _BLOCK.finditer(text)), len(text)]:
        block = text[start:end]
        if block.strip():
            before = len(block) - len(block.lstrip())
            yield text.count("\n", 0, start + before) + 1, _MARKER.sub("", block.strip())
        start = end


def sentences(text: str, *, ends: str = ".?!") -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page, each with the line where its paragraph starts."""
    for line, block in blocks(text):
        plain = CODE.sub(lambda found: found[0].replace(" ", "\0"), _LINK.sub(r"\1", " ".join(block.split())))
        kept = ""
        for part in _END.split(plain):
            kept = f"{kept} {part}".strip()
            if kept.rstrip("\"')*_")[-1:] in ends and not _SHORT.search(kept):
                yield line, kept.replace("\0", " ")
                kept = ""
        if kept:
            yield line, kept.replace("\0", " ")


def words(sentence: str) -> int:
    """Return the number of words; a piece of code is one."""
    return len(_WORD.findall(CODE.sub("code", sentence)))


def pages() -> list[Path]:
    """Return the pages for users that people wrote."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        path for path in found
        if "contributing" not in path.parts and not path.read_text().startswith(GENERATED)]


def main(arguments: list[str]) -> int:
    """Print the sentences that a seed draws."""
    seed, count = int(arguments[0]), int((arguments[1:2] or ["40"])[0])
    chosen = [Path(name).resolve() for name in arguments[2:]] or pages()
    found = [
        (f"{path.relative_to(ROOT)}:{line}", sentence)
        for path in chosen for line, sentence in sentences(path.read_text(), ends=".?!:") if words(sentence) >= 6]
    for number, (place, sentence) in enumerate(random.Random(seed).sample(found, min(count, len(found))), 1):
        print(f"{number:2} {place}\n   {sentence}")
    print(f"{count} of {len(found)} sentences, seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
