"""The broker without sockets of `tests/support/broker_kit.py`."""

from broker_kit import broker, channel, clock, kit, loop, open_store, store  # noqa: F401 - fixtures
