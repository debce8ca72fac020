"""Servers and clients that exchange remoting frames over sockets. Other rooms define what the commands mean."""

from __future__ import annotations

from tailrace.remoting.client import RemotingClient
from tailrace.remoting.in_process import InProcessConnection
from tailrace.remoting.server import Channel, Processor, RemotingServer

__all__ = ["Channel", "InProcessConnection", "Processor", "RemotingClient", "RemotingServer"]
