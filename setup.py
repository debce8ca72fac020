"""Build the compiled twins of the kernels; everything else is in pyproject.toml.

Each kernel is copied below ``build/kernels`` with the SHA-256 of its source put into it, and
compiled as ``tailrace.kernels._compiled.<name>``. Without Cython or a C compiler the package
installs all the same and the kernels run interpreted.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from setuptools import Extension, setup

KERNELS = (
    "record", "hashes", "queue_units", "index_entries", "index_chains", "tag_filter", "header",
    "columns", "column_records", "timer_records", "timer_put_back", "timer_lists",
    "timer_replay",
)
SOURCES = Path("src/tailrace/kernels")


def extensions() -> list[Extension]:
    """One optional extension a kernel; none without Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    made = []
    for name in KERNELS:
        source = (SOURCES / f"{name}.py").read_bytes()
        stamped = source.decode().replace(
            'SOURCE_SHA256 = ""', f'SOURCE_SHA256 = "{hashlib.sha256(source).hexdigest()}"', 1
        )
        copy = Path("build/kernels") / f"{name}.py"
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_text() != stamped:
            copy.write_text(stamped)
        made.append(
            Extension(
                f"tailrace.kernels._compiled.{name}",
                [str(copy)],
                extra_compile_args=["-O3"],
            )
        )
    cythonized = list(cythonize(made, build_dir="build/c", quiet=True))
    for extension in cythonized:
        extension.optional = True  # here, because cythonize makes new ones and forgets it
    return cythonized


setup(ext_modules=extensions())
