"""A Dramatiq broker on RocketMQ or Tailrace; docs/how-to/programs/frameworks.md.

    import dramatiq
    from tailrace_dramatiq import DramatiqBroker

    dramatiq.set_broker(DramatiqBroker(namesrv="127.0.0.1:9876"))
"""

from __future__ import annotations

from tailrace_dramatiq.broker import DramatiqBroker

__all__ = ["DramatiqBroker"]
