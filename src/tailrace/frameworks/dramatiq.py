"""The names of `tailrace_dramatiq`, for programs that import them from here."""

from __future__ import annotations

from tailrace.errors import MissingPackageError

try:
    from tailrace_dramatiq import RocketmqBroker
except ModuleNotFoundError as _error:
    if _error.name not in {"tailrace_dramatiq", "dramatiq"}:
        raise
    raise MissingPackageError("tasks of Dramatiq", "tailrace-dramatiq", "") from None

__all__ = ["RocketmqBroker"]
