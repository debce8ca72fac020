"""Compression of message bodies by a producer; consumers find the kind in the flags of the message."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from tailrace.errors import ConfigError, MissingPackageError
from tailrace.formats.commitlog import SysFlag

__all__ = ["COMPRESSIONS", "Compressor", "compressor_of"]

COMPRESSIONS: Final = ("zlib", "lz4", "zstd")
_LEVEL: Final = 5
"""Level of compression, as in RocketMQ (compressLevel)."""


Compressor = Callable[[bytes], bytes]


def compressor_of(kind: str) -> tuple[Compressor, int]:
    """Return the function that compresses, and the flags of its messages.

    Raises ConfigError for an unknown kind, MissingPackageError if its package is not installed.
    """
    if kind == "zlib":
        return lambda body: zlib.compress(body, _LEVEL), SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    if kind == "lz4":
        try:
            import lz4.frame  # noqa: PLC0415 - an optional package
        except ImportError:
            raise MissingPackageError("LZ4 bodies", "lz4", "compression") from None
        return lz4.frame.compress, SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4
    if kind == "zstd":
        try:
            import zstandard  # noqa: PLC0415
        except ImportError:
            raise MissingPackageError("ZSTD bodies", "zstandard", "compression") from None
        return zstandard.ZstdCompressor().compress, SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD
    raise ConfigError(f"compression={kind!r} is not one of {', '.join(COMPRESSIONS)}")
