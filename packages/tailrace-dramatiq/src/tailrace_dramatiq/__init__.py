"""A Dramatiq broker on RocketMQ or Tailrace; docs/how-to/programs/frameworks.md.

    import dramatiq
    from tailrace_dramatiq import RocketmqBroker

    dramatiq.set_broker(RocketmqBroker(namesrv="127.0.0.1:9876"))
"""

from __future__ import annotations

from tailrace_dramatiq.broker import RocketmqBroker

__all__ = ["RocketmqBroker"]
