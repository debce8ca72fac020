"""Build the compiled twins of the kernels; everything else is in pyproject.toml.

Each kernel is copied below ``build/kernels`` with the SHA-256 of its source put into it, and
compiled as ``tailrace.kernels._compiled.<name>``. Without Cython or a C compiler the package
installs all the same and the kernels run interpreted.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = ("record", "hashes", "queue_units", "index_entries", "tag_filter", "header")
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
                optional=True,  # the file may be missing afterwards
            )
        )
    return list(cythonize(made, build_dir="build/c", quiet=True))


class OptionalBuildExt(build_ext):
    """Goes on without a kernel that does not compile.

    ``Extension.optional`` alone is not enough: setuptools compares classes of errors, and where
    Cython has loaded a second copy of distutils, a missing compiler raises the other copy's.
    """

    def build_extension(self, ext: Extension) -> None:
        """Build one kernel, or say why not."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 - whatever it is, the source runs interpreted
            self.warn(f"{ext.name} is not compiled and will run interpreted: {error}")


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuildExt})
