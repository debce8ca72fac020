"""The broker without sockets of `tests/support/broker_kit.py`."""

from broker_kit import broker, channel, clock, kit, loop, store  # noqa: F401 - fixtures
