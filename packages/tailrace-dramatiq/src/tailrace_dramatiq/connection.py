"""The clients of a broker object, made when they are first used: a forked child has its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, final

from dramatiq.errors import ConnectionClosed

from tailrace.client.instance import Target
from tailrace.client.producer import AsyncProducer
from tailrace.client.pull_consumer import AsyncPullConsumer
from tailrace.env.loop_thread import EventLoopThread
from tailrace.errors import RemotingConnectError, RemotingTimeoutError

__all__ = ["Clients", "Connection"]

_T = TypeVar("_T")


@final
class Clients:
    """A producer on the event loop thread of this process."""

    def __init__(self, target: Target, retries: int) -> None:
        self.pid = os.getpid()
        self.target = target
        self._loop = EventLoopThread()
        self.producer = AsyncProducer(
            namesrv=target.namesrv, broker=target.broker, group="DRAMATIQ_PRODUCER", timeout_ms=target.timeout_ms,
            tls=target.tls or False, credentials=target.credentials, retries=retries)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and wait for its result; raises ConnectionClosed if no broker can be reached."""
        try:
            return self._loop.run(work)
        except (RemotingConnectError, RemotingTimeoutError) as error:
            raise ConnectionClosed(error) from error

    def reader(self, group: str) -> AsyncPullConsumer:
        """Return a pull consumer of a group; the caller closes it."""
        target = self.target
        return AsyncPullConsumer(
            namesrv=target.namesrv, broker=target.broker, group=group, timeout_ms=target.timeout_ms,
            tls=target.tls or False, credentials=target.credentials)

    def close(self) -> None:
        """Close the connections."""
        try:
            self._loop.run(self.producer.close())
        finally:
            self._loop.close()


@final
class Connection:
    """Makes `Clients` for the process that needs them."""

    def __init__(self, target: Target, retries: int) -> None:
        self._target = target
        self._retries = retries
        self._lock = threading.Lock()
        self._clients: Clients | None = None

    @property
    def clients(self) -> Clients:
        """The clients of this process."""
        with self._lock:
            if self._clients is None or self._clients.pid != os.getpid():
                self._clients = Clients(self._target, self._retries)
            return self._clients

    def close(self) -> None:
        """Close the clients of this process; the next use makes new ones."""
        with self._lock:
            clients, self._clients = self._clients, None
        if clients is not None and clients.pid == os.getpid():
            clients.close()
