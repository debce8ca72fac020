"""Limits of open descriptors: of the process, and of the segment files of a store."""

from __future__ import annotations

import resource
from typing import Final

from tailrace.errors import ConfigError

__all__ = ["descriptor_limit", "raise_descriptor_limit", "segment_file_limit"]

_UNLIMITED: Final = 1 << 20
_LEAST_FILES: Final = 16
_MOST_FILES: Final = 16_384
"""Each file may be a mapping too, and Linux gives a process 65,530 of them (vm.max_map_count)."""


def descriptor_limit() -> int:
    """Return the soft limit of this process (``ulimit -n``); 2^20 without a limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one if that is allowed; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # the lower limit is not a reason not to serve
    return descriptor_limit()


def segment_file_limit(max_open_files: int) -> int:
    """Return the number of descriptors that the segment files of a store may take.

    Without a setting (0) that is a quarter of the soft limit. Three quarters are for connections (most
    descriptors of a broker), for config files, and for the rest of the process, about which an embedded store
    has no information. Raises ConfigError if ``max_open_files`` is more than three quarters of the limit.
    """
    limit = descriptor_limit()
    if max_open_files > limit * 3 // 4:
        raise ConfigError(
            f"maxOpenFiles={max_open_files} is more than three quarters of the process's limit of {limit} "
            "descriptors; raise `ulimit -n` or lower maxOpenFiles")
    return max_open_files or min(max(limit // 4, _LEAST_FILES), _MOST_FILES)
