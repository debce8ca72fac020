"""Answers to sends that wait until their message is durable, or on enough slaves.

All sends of one turn of the event loop wait together, for the end of the last message. So they need one
call to the store, one wake-up of the loop, and one write for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar, final

from tailrace import events
from tailrace.env.supervision import failed
from tailrace.errors import RefusalError
from tailrace.formats.remoting import (
    RemotingCommand,
    ResponseCode,
    decode_frame,
    encode,
    failure_text,
)
from tailrace.logs import get_logger
from tailrace.model import PutMessageStatus
from tailrace.remoting import Channel
from tailrace.requests.executors import LoopMailbox
from tailrace.requests.reply import Reply

__all__ = [
    "DurableAnswers", "DurableStore", "OnDisk", "SyncedStore", "Then", "not_durable", "refuse_undurable",
    "when_durable",
]

_log = get_logger(__name__)

PENDING_LIMIT: Final = 10_000
"""Number of sends that may wait, as in RocketMQ (sendThreadPoolQueueCapacity)."""

Then = Callable[[PutMessageStatus], int | None]
"""Is called with the result of the sync. Returns None, or a later position to wait for.

An error that it raises is the answer to its request, and changes no other answer.
"""
_Batch = list[tuple["Reply | JoinedReply | AwaitedStatus", bytes, Then | None, int, bool]]
_SLAVES: Final = frozenset({PutMessageStatus.FLUSH_SLAVE_TIMEOUT, PutMessageStatus.SLAVE_NOT_AVAILABLE})


class DurableStore(Protocol):
    """The part of a store that is used here."""

    def when_durable(self, until: int, callback: Callable[[PutMessageStatus], None]) -> None:
        """Call ``callback``, from any thread, when the log is durable up to ``until``."""
        ...


class SyncedStore(Protocol):
    """A store that can wait for its own disk alone."""

    def when_synced(self, until: int, callback: Callable[[PutMessageStatus], None]) -> None:
        """Call ``callback``, from any thread, when the log of this store is durable up to ``until``."""
        ...


@final
class OnDisk:
    """A store for answers that wait for its disk, and for no copy on a slave."""

    def __init__(self, store: SyncedStore) -> None:
        self.when_durable = store.when_synced


@final
class DurableAnswers:
    """Sends encoded answers when the log is durable up to their position."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: DurableStore, limit: int = PENDING_LIMIT
    ) -> None:
        self._loop = loop
        self._store = store
        self._limit = limit
        self._batch: _Batch = []
        self._until = 0
        self._done: LoopMailbox[tuple[_Batch, PutMessageStatus]] = LoopMailbox(loop, self._answer)
        self.pending = 0

    @property
    def full(self) -> bool:
        """True if further sends should be refused for now."""
        return self.pending >= self._limit

    @property
    def room(self) -> int:
        """How many more sends may wait."""
        return self._limit - self.pending

    def status(self, until: int, then: Then | None = None) -> asyncio.Future[PutMessageStatus]:
        """Return the future of the result of the sync up to ``until``, for an answer that is not a frame.

        If ``then`` returns a later position, it is the result of the sync up to there.
        """
        awaited = AwaitedStatus(self._loop.create_future())

        def done(status: PutMessageStatus) -> None:
            later = None if then is None else then(status)
            if later is None:
                awaited.done(status)
            else:
                self.add(awaited, b"", later, awaited.done)

        self.add(awaited, b"", until, done)
        return awaited.future

    def add(
        self, reply: Reply | JoinedReply | AwaitedStatus, answer: bytes, until: int, then: Then | None = None,
        count: int = 1, *, names_slaves: bool = True,
    ) -> None:
        """End a reply with ``answer`` when the log is durable up to ``until``, after a call of ``then``.

        An empty answer (oneway request) is not sent. It may be the joined frames of answers to ``count`` requests.
        Without ``names_slaves`` it says nothing about missing copies on slaves.
        """
        if not self._batch:
            self._loop.call_soon(self._register)
        self._batch.append((reply, answer, then, count, names_slaves))
        self.pending += count
        self._until = max(self._until, until)

    def _register(self) -> None:
        batch, self._batch = self._batch, []
        try:
            self._store.when_durable(self._until, partial(self._durable, batch))
        except Exception as error:  # noqa: BLE001 - every request of the batch gets an answer
            # It is not known whether the messages are durable; the answers say so.
            events.CANNOT_WAIT_FOR_THE_DISK.log(_log, sends=len(batch), reason=error)
            self._durable(batch, PutMessageStatus.SERVICE_NOT_AVAILABLE)

    def _durable(self, batch: _Batch, status: PutMessageStatus) -> None:
        self._done.put((batch, status))

    def _answer(self, done: list[tuple[_Batch, PutMessageStatus]]) -> None:
        by_channel: dict[Channel, list[bytes]] = {}
        for batch, status in done:
            is_durable, on_slaves = status is PutMessageStatus.PUT_OK, status not in _SLAVES
            for reply, answer, then, count, names_slaves in batch:
                self.pending -= count
                try:
                    later = then(status) if then is not None else None
                    if later is not None:
                        self.add(reply, answer, later, names_slaves=names_slaves)
                        continue
                    is_kept = is_durable or not answer or not (on_slaves or names_slaves)
                    last = answer if is_kept else _changed(answer, status)
                except Exception as error:  # noqa: BLE001 - one failing answer costs one answer
                    reply.fail(error)
                else:
                    reply.drop()  # it is written with the others of its connection
                    if last:
                        assert not isinstance(reply, AwaitedStatus), "it has no answer to write"
                        by_channel.setdefault(reply.channel, []).append(last)
        for channel, answers in by_channel.items():
            try:
                channel.write(b"".join(answers))
            except Exception:  # noqa: BLE001 - the other connections get their answers
                failed("DurableAnswers")
                channel.close()


A = TypeVar("A", bound=RemotingCommand | bytes)


def when_durable(
    durable: DurableAnswers | None, channel: Channel, request: RemotingCommand,
    answer: A, until: int, then: Then | None = None, *, names_slaves: bool = False,
) -> A | None:
    """Return the answer, or None if it is sent later, when the log is durable up to ``until``.

    Without ``durable``, for position 0, or for a oneway request without ``then``, nothing waits. For ``then`` and
    ``names_slaves`` see `DurableAnswers.add`: as in RocketMQ only sends and replies say that copies on slaves are
    missing.
    """
    if durable is None or not until or (request.is_oneway and then is None):
        return answer
    frame = b"" if request.is_oneway else answer if isinstance(answer, bytes) else encode(answer)
    durable.add(Reply(channel, request), frame, until, then, names_slaves=names_slaves)
    return None


@final
class AwaitedStatus:
    """A call that waits for the disk in a coroutine, which makes its answer."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[PutMessageStatus]) -> None:
        self.future = future

    def done(self, status: PutMessageStatus) -> None:
        """Pass on the result of the sync."""
        if not self.future.done():  # else the call was cancelled
            self.future.set_result(status)

    def drop(self) -> None:
        """End the wait; the future has the result."""

    def fail(self, error: Exception) -> None:
        """Pass on an error."""
        if not self.future.done():
            self.future.set_exception(error)


@final
class JoinedReply:
    """The reply to several requests that were served together; ``answers`` are the frames of their answers."""

    __slots__ = ("_answers", "channel")

    def __init__(self, channel: Channel, answers: bytes) -> None:
        self.channel = channel
        self._answers = answers

    def drop(self) -> None:
        """End the reply, because the answers are sent with others."""

    def fail(self, error: Exception) -> None:
        """Send the answer for an error to each of the requests."""
        def change(response: RemotingCommand) -> None:
            response.code, response.remark, response.ext = (
                ResponseCode.SYSTEM_ERROR, failure_text(error), {})

        self.channel.write(_edited(self._answers, change))


def _changed(answer: bytes, status: PutMessageStatus) -> bytes:
    """Return the answer with the code of a wait that failed."""
    def change(response: RemotingCommand) -> None:
        refusal = not_durable(status)
        response.code, response.remark = refusal.code, refusal.remark

    return _edited(answer, change)


def refuse_undurable(status: PutMessageStatus) -> None:
    """Raise RefusalError for a wait for the disk that has failed; missing copies on slaves are no error here."""
    if status is not PutMessageStatus.PUT_OK and status not in _SLAVES:
        raise not_durable(status)


def not_durable(status: PutMessageStatus) -> RefusalError:
    """Return the code and the remark for a message whose wait for the disk or for slaves has not ended with PUT_OK."""
    if status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT:
        return RefusalError(
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "the message is stored, and slaveTimeout was over before enough slaves had it")
    if status is PutMessageStatus.SLAVE_NOT_AVAILABLE:
        return RefusalError(
            ResponseCode.SLAVE_NOT_AVAILABLE,
            "the message is stored, but fewer brokers are in sync than inSyncReplicas")
    if status is PutMessageStatus.FLUSH_DISK_TIMEOUT:
        return RefusalError(ResponseCode.FLUSH_DISK_TIMEOUT, "the message is stored, but not durable yet")
    return RefusalError(
        ResponseCode.SERVICE_NOT_AVAILABLE, "the message could not be made durable, the store takes no more writes")


def _edited(answer: bytes, edit: Callable[[RemotingCommand], None]) -> bytes:
    """Return the frames of an answer, one or several, after an edit of each."""
    frames: list[bytes] = []
    at = 0
    while at < len(answer):
        response, at = decode_frame(answer, at, len(answer))
        assert response is not None
        edit(response)
        frames.append(encode(response))
    return b"".join(frames)
