"""How many descriptors this process may have."""

from __future__ import annotations

import resource

__all__ = ["descriptor_limit", "raise_descriptor_limit"]


def descriptor_limit() -> int:
    """Return the soft limit of this process (``ulimit -n``)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one if that is allowed; return the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # the lower limit is not a reason not to serve
    return descriptor_limit()
