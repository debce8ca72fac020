"""Automatic batches: messages that are sent within a short time share a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from tailrace.client.pending import Turns
from tailrace.client.send_result import SendResult
from tailrace.errors import RemotingCommandError
from tailrace.formats.remoting import ResponseCode

__all__ = ["Batches", "BatchItem", "BatchKey"]

ITEM_OVERHEAD: Final = 22
"""Bytes of an item in addition to its body and properties."""


class BatchKey(NamedTuple):
    """The common values of the messages of a batch. Without a queue id any queue of the topic may be used."""

    topic: str
    queue_id: int | None
    in_order: bool = False
    """True if a batch is sent only after the previous one is stored."""


class BatchItem(NamedTuple):
    """A message of a batch."""

    flag: int
    body: bytes
    properties: bytes
    unique_key: str


@dataclass(slots=True)
class _Open:
    """A batch to which messages can still be added."""

    items: list[BatchItem] = field(default_factory=list)
    results: list[asyncio.Future[SendResult]] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | None = None


@final
class Batches:
    """Collects messages; a batch is sent after ``linger_s``, or when it has ``most`` bytes."""

    def __init__(
        self, send: Callable[[BatchKey, list[BatchItem]], Awaitable[SendResult]], linger_s: float, most: int
    ) -> None:
        self._send = send
        self._linger_s = linger_s
        self._most = most
        self._open: dict[BatchKey, _Open] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._turns = Turns()

    def add(self, key: BatchKey, item: BatchItem) -> asyncio.Future[SendResult]:
        """Add a message; return the future of its result, or of the error of its batch."""
        size = len(item.body) + len(item.properties) + ITEM_OVERHEAD
        batch = self._open.get(key)
        if batch is not None and batch.size + size > self._most:
            self._close(key)
            batch = None
        loop = asyncio.get_running_loop()
        if batch is None:
            batch = self._open[key] = _Open()
            batch.timer = loop.call_later(self._linger_s, self._close, key)
        result: asyncio.Future[SendResult] = loop.create_future()
        batch.items.append(item)
        batch.results.append(result)
        batch.size += size
        if batch.size >= self._most:
            self._close(key)
        return result

    def _close(self, key: BatchKey) -> None:
        batch = self._open.pop(key, None)
        if batch is None:
            return
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.create_task(self._send_in_turn(key, batch.items, batch.results))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_in_turn(
        self, key: BatchKey, items: list[BatchItem], results: list[asyncio.Future[SendResult]]
    ) -> None:
        async with self._turns.of(key) if key.in_order else contextlib.nullcontext():
            await self._send_batch(key, items, results)

    async def _send_batch(
        self, key: BatchKey, items: list[BatchItem], results: list[asyncio.Future[SendResult]]
    ) -> None:
        try:
            _succeed(items, results, await self._send(key, items))
        except RemotingCommandError as error:
            if len(items) > 1 and error.code == ResponseCode.MESSAGE_ILLEGAL:
                for item, result in zip(items, results, strict=True):  # one of them must not fail the others
                    await self._send_batch(key, [item], [result])
                return
            _fail(results, error)
        except BaseException as error:  # noqa: BLE001 - those that wait get it
            _fail(results, error)

    async def flush(self) -> None:
        """Send all open batches, and wait for their answers."""
        for key in list(self._open):
            self._close(key)
        while self._sending:
            await asyncio.gather(*self._sending)


def _succeed(items: list[BatchItem], results: list[asyncio.Future[SendResult]], sent: SendResult) -> None:
    ids = sent.offset_msg_id.split(",")
    for number, (item, result) in enumerate(zip(items, results, strict=True)):
        if not result.done():
            result.set_result(SendResult(
                sent.status, sent.broker_name, sent.queue_id, sent.queue_offset + number, item.unique_key,
                ids[number] if number < len(ids) else "", region=sent.region))


def _fail(results: list[asyncio.Future[SendResult]], error: BaseException) -> None:
    for result in results:
        if not result.done():
            result.set_exception(error)
            result.exception()  # a caller that has gone need not look at it
