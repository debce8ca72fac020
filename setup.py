"""Build the compiled twins of the kernels and of ``store.append``; everything else is in pyproject.toml.

Each one is copied below ``build/kernels`` with the files of ``kernels/shared`` in the place of the
lines that import them, numbers in the place of the names that stand for them, and the SHA-256 of its
source put in, and compiled as ``tailrace.kernels._compiled.<name>``. Without Cython or a C compiler the package
installs all the same and the kernels run interpreted; the wheel has the tag ``py3-none-any``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

KERNELS = (
    "record", "append", "hashes", "queue_units", "index_entries", "index_chains", "header",
    "columns", "column_records", "timer_records", "timer_put_back", "timer_units",
    "properties", "table_records", "unit_records", "signatures", "send_lane", "pull_lane", "file_end",
)
SOURCES = Path("src/tailrace/kernels")
ELSEWHERE = {"append": Path("src/tailrace/store")}
FLAGS = {name: ["-fno-tree-slp-vectorize"] for name in ("append", "send_lane")}
"""A record is written right after ISA-L's checksum, whose AVX-512 state makes the next SSE instruction wait 100 ns."""
INT_MAX, LONG_MAX = 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF
NUMBERS = {"C": "constants", "L": "layouts"}
DECLARED = re.compile(r"^(\w+) = cython\.declare\(cython\.(\w+), (0x[0-9A-F]+|[\d_]+)\)", re.MULTILINE)
NUMBERS_IMPORTED = re.compile(r"^from tailrace\.kernels\.shared import \w+ as [CL]\n", re.MULTILINE)
SHARED = re.compile(
    r"^from tailrace\.kernels\.shared\.(\w+) import (?:[\w, ]+|\([\w,\s]+\))$", re.MULTILINE)


def shared_text(name: str) -> str:
    """A shared file without what every kernel has once."""
    return (SOURCES / "shared" / f"{name}.py").read_text().replace("\nimport cython\n", "\n", 1)


def with_shared(text: str, there: set[str]) -> str:
    """A source with each file of ``shared`` that it needs in the place of the first line that imports it."""
    def put(found: re.Match[str]) -> str:
        if found[1] in there:
            return ""
        there.add(found[1])
        return with_shared(shared_text(found[1]), there)
    return SHARED.sub(put, text)


def numbers_of(name: str) -> dict[str, str]:
    """What a file of ``NUMBERS`` names, as C expressions."""
    numbers = re.findall(r"^(\w+) = (\w+)", (SOURCES / "shared" / f"{name}.py").read_text(), re.MULTILINE)
    return {name: f"cython.cast(cython.{'longlong' if int(number, 0) > INT_MAX else 'int'}, {number})"
            for name, number in numbers}


def with_numbers(text: str) -> str:
    """A source with each number that it declares in the place of its name.

    A name would be a variable in C. A compiler cannot know that it never changes, so each use would load it, and a
    division by it would be a slow instruction. Cython has no C literals above ``LONG_MAX``.
    """
    numbers = {name: f"cython.cast(cython.{kind}, {number})"
               for name, kind, number in DECLARED.findall(text) if int(number, 0) <= LONG_MAX}
    text = DECLARED.sub(lambda found: "" if found[1] in numbers else found[0], text)
    for alias, file in NUMBERS.items():
        numbers |= {f"{alias}.{name}": number for name, number in numbers_of(file).items()}
    text = NUMBERS_IMPORTED.sub("", text)
    return re.sub(r"(?<![\w.])(?:[CL]\.)?[A-Z_]\w*\b", lambda found: numbers.get(found[0], found[0]), text)


def source_of(name: str) -> str:
    """What is compiled as a kernel."""
    paths = [*sorted((SOURCES / "shared").glob("*.p[yx]*")), ELSEWHERE.get(name, SOURCES) / f"{name}.py"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()  # as kernels/__init__.py
    text = with_numbers(with_shared(paths[-1].read_text(), set()))
    return text.replace('SOURCE_SHA256 = ""', f'SOURCE_SHA256 = "{digest}"', 1)


def extensions() -> list[Extension]:
    """One optional extension a kernel; none without Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    made = []
    Path("build/kernels").mkdir(parents=True, exist_ok=True)
    for path in (SOURCES / "shared").glob("*.pxd"):
        copy = Path("build/kernels") / path.name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():  # a new one makes Cython run again
            shutil.copy(path, copy)
    for name in KERNELS:
        text = source_of(name)
        copy = Path("build/kernels") / f"{name}.py"
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
        made.append(
            Extension(
                f"tailrace.kernels._compiled.{name}",
                [str(copy)],
                extra_compile_args=os.environ.get("TAILRACE_CFLAGS", "-O3 -g0").split() + FLAGS.get(name, []),
                extra_link_args=os.environ.get(  # no symbols, a third of the size
                    "TAILRACE_LDFLAGS", "-Wl,-s" if sys.platform == "linux" else "").split(),
            )
        )
    cythonized = list(cythonize(made, build_dir="build/c", include_path=["build/kernels"], quiet=True))
    for extension in cythonized:
        extension.optional = True  # here, because cythonize makes new ones and forgets it
    return cythonized


class Wheel(bdist_wheel):
    """A wheel for every machine, with a warning, if no kernel was compiled."""

    def _built(self) -> set[str]:
        return {path.name.split(".")[0] for path in Path(self.bdist_dir).rglob("_compiled/*.so")}

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag for what was built."""
        if self._built():
            return super().get_tag()
        self.root_is_pure = True
        return "py3", "none", "any"

    def write_wheelfile(self, *arguments: str) -> None:
        """Write the description of the wheel."""
        if missing := {*KERNELS} - self._built():
            self.warn(
                f"{len(missing)} of {len(KERNELS)} kernels are not compiled and will run interpreted, 20 to 100 times "
                "as slow; to compile them, install a C compiler and the headers of Python, then build again")
        super().write_wheelfile(*arguments)


def readme() -> str:
    """README.md; with absolute links if pyproject.toml says where the source is published."""
    urls = tomllib.loads(Path("pyproject.toml").read_text())["project"].get("urls", {})
    text, source = Path("README.md").read_text(), urls.get("Source", "").rstrip("/")
    return re.sub(r"\]\((?!https?:)([^)#\s]+)", rf"]({source}/blob/main/\1", text) if source else text


setup(long_description=readme(), long_description_content_type="text/markdown", ext_modules=extensions(),
      cmdclass={"bdist_wheel": Wheel},
      options={"build_ext": {"parallel": os.cpu_count()}})
