"""Broker and name server: sockets and processors around a `MessageStore`."""

from __future__ import annotations

from tailrace.broker.controller import BrokerController

__all__ = ["BrokerController"]
