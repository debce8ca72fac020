"""Loops over bytes: the room that is compiled; ``store.append`` is compiled in the same way.

Each kernel is one ``.py`` file in Cython's pure-Python mode. The compiled kernel is a module of the same name
below ``tailrace.kernels._compiled``. It has the SHA-256 of its source and of ``shared``. If that does not match,
if there is no C compiler, or if ``TAILRACE_INTERPRETED=1`` is set, the source runs interpreted instead. Both give
the same results.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from isal import isal_zlib

from tailrace import events
from tailrace.kernels.interpreted import instead_of_cython
from tailrace.logs import get_logger

__all__ = [
    "column_records",
    "columns",
    "compiled",
    "file_end",
    "hashes",
    "header",
    "index_chains",
    "index_entries",
    "load",
    "properties",
    "pull_lane",
    "queue_units",
    "record",
    "send_lane",
    "signatures",
    "table_records",
    "timer_put_back",
    "timer_records",
    "timer_units",
    "unit_records",
]

_log = get_logger(__name__)
_ROOM = Path(__file__).parent
_SHARED = b"".join(path.read_bytes() for path in sorted((_ROOM / "shared").glob("*.p[yx]*")))
_interpreted: list[str] = []
_not_compiled: list[ImportError] = []


@functools.cache
def _find_crc32() -> int:
    """Return the address of ISA-L's CRC-32 function, 0 if the module isal does not export it.

    Compiled kernels call it without the interpreter. Without it they call zlib.
    """
    try:
        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (OSError, AttributeError) as error:
        events.CHECKSUMS_ARE_COMPUTED_BY_ZLIB.log(_log, reason=error)
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _lend_crc32(kernel: ModuleType) -> None:
    """Let a kernel use ISA-L's CRC-32, if it computes the same as zlib."""
    kernel.use_crc32(_find_crc32())
    sample = bytes(range(256)) * 5
    for start, until in ((0, 1), (1, 17), (3, 259), (0, len(sample))):
        if kernel.crc32(sample, start, until) != zlib.crc32(sample[start:until]):
            events.CHECKSUMS_OF_ISA_L_ARE_WRONG.log(_log, reason="ISA-L computes another one")
            kernel.use_crc32(0)
            return


def load(name: str, room: str = "kernels") -> ModuleType:
    """Return a module of a room that setup.py compiles; its source, interpreted, if there is no compiled one of it."""
    if os.environ.get("TAILRACE_INTERPRETED") != "1":
        try:
            twin = importlib.import_module(f"tailrace.kernels._compiled.{name}")
        except ImportError as error:
            _not_compiled.append(error)
        else:
            source = (_ROOM.parent / room / f"{name}.py").read_bytes()
            if twin.SOURCE_SHA256 == hashlib.sha256(_SHARED + source).hexdigest():
                sys.modules[f"tailrace.{room}.{name}"] = twin
                if hasattr(twin, "use_crc32"):
                    _lend_crc32(twin)
                return twin
            events.COMPILED_KERNEL_REFUSED.log(_log, name=name)
    _interpreted.append(name)
    with instead_of_cython():
        return importlib.import_module(f"tailrace.{room}.{name}")


if TYPE_CHECKING:
    from tailrace.kernels import (
        column_records,
        columns,
        file_end,
        hashes,
        header,
        index_chains,
        index_entries,
        properties,
        pull_lane,
        queue_units,
        record,
        send_lane,
        signatures,
        table_records,
        timer_put_back,
        timer_records,
        timer_units,
        unit_records,
    )
else:
    globals().update({name: load(name) for name in __all__ if name not in ("compiled", "load")})

if _not_compiled:
    events.KERNELS_ARE_NOT_COMPILED.log(_log, count=len(_not_compiled), reason=_not_compiled[0])


def _lend_sha1(kernel: ModuleType = signatures) -> None:
    """Let the kernel use OpenSSL's SHA-1, which hashlib has loaded, if it computes the same as hashlib."""
    key, content = bytes(range(64)), bytes(range(256)) * 5
    wanted = kernel.digest(key, content, content)
    try:
        library = ctypes.CDLL(importlib.import_module("_hashlib").__file__)
        functions = (library.SHA1_Init, library.SHA1_Update, library.SHA1_Final)
    except (ImportError, OSError, AttributeError, TypeError) as error:
        events.SIGNATURES_ARE_COMPUTED_BY_HASHLIB.log(_log, reason=error)
        return
    kernel.use_sha1(*(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions))
    if kernel.digest(kernel.begin(key), content, content) != wanted:
        kernel.use_sha1(0, 0, 0)
        events.SIGNATURES_ARE_COMPUTED_BY_HASHLIB.log(_log, reason="OpenSSL computes another one")


if "signatures" not in _interpreted:
    _lend_sha1()


def compiled() -> bool:
    """Return True if every kernel runs compiled."""
    return not _interpreted
