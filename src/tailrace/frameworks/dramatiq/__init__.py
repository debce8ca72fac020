"""A Dramatiq broker on RocketMQ: the extra ``dramatiq``; docs/how-to/programs/frameworks.md.

    import dramatiq
    from tailrace.frameworks.dramatiq import RocketmqBroker

    dramatiq.set_broker(RocketmqBroker(namesrv="127.0.0.1:9876"))
"""

from __future__ import annotations

from tailrace.errors import MissingPackageError

try:
    import dramatiq as _dramatiq  # noqa: F401 - an optional package
except ModuleNotFoundError as _error:
    if _error.name != "dramatiq":
        raise
    raise MissingPackageError("tasks of Dramatiq", "dramatiq", "dramatiq") from None

from tailrace.frameworks.dramatiq.broker import RocketmqBroker

__all__ = ["RocketmqBroker"]
