"""The names of `tailrace_faststream`, for programs that import them from here."""

from __future__ import annotations

from tailrace.errors import MissingPackageError

try:
    from tailrace_faststream import (
        RocketmqBroker,
        RocketmqMessage,
        RocketmqResponse,
        RocketmqRouter,
        TestRocketmqBroker,
    )
except ModuleNotFoundError as _error:
    if _error.name not in {"tailrace_faststream", "faststream"}:
        raise
    raise MissingPackageError("subscribers of FastStream", "tailrace-faststream", "") from None

__all__ = ["RocketmqBroker", "RocketmqMessage", "RocketmqResponse", "RocketmqRouter", "TestRocketmqBroker"]
