"""Sockets that carry remoting frames: knows commands, not what they mean."""

from __future__ import annotations

from tailrace.remoting.client import RemotingClient
from tailrace.remoting.server import Channel, Processor, RemotingServer

__all__ = ["Channel", "Processor", "RemotingClient", "RemotingServer"]
