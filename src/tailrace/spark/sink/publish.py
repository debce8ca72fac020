"""Sends messages to a broker in order, one request at a time, and finds the end of an earlier try.

Every message of a stream has the property ``TAILRACE_TXN`` = query/batch/number. A request is sent after the
one before it was answered, so the log holds the numbers from 0 to the last one that was stored, without a hole.
A try that starts after the last number in the log sends no message twice. A message with a delivery time is in the
timer queue, so the timer queue is searched as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, Protocol, Self

import pyarrow as pa

from tailrace import events
from tailrace.client import Producer, PullConsumer
from tailrace.client.routes import MessageQueue
from tailrace.env.clock import SystemClock
from tailrace.env.read_ahead import read_ahead
from tailrace.errors import MessageIllegalError, RemotingCommandError, RemotingError, StoreError
from tailrace.formats.names import TIMER_TOPIC
from tailrace.formats.remoting import ResponseCode
from tailrace.logs import get_logger
from tailrace.model import MessageExt
from tailrace.spark.sink import limits
from tailrace.spark.sink.limits import Need
from tailrace.spark.sink.options import WriteOptions
from tailrace.spark.sink.requests import TXN, Request, requests_of

__all__ = ["Publisher", "Sleep", "Starts", "publish"]

_log = get_logger(__name__)
_AHEAD: Final = 2
"""Requests that are made while another one is on its way."""
_PULL: Final = 256
_TRIES: Final = 600
_WAIT_S: Final = 0.05
_SENDS: Final = 5
_PASSING: Final = frozenset({
    ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
Starts = dict[str, dict[str, int]]
"""Ends of queues before anything was sent: {topic: {"broker/queueId": offset}}."""


class Sleep(Protocol):
    """A function that waits for a number of seconds."""

    def __call__(self, seconds: float, /) -> object:
        """Wait."""
        ...


class Publisher:
    """A producer and a consumer of one broker or cluster; use it as a context manager."""

    def __init__(self, options: WriteOptions, sleep: Sleep) -> None:
        self._sleep = sleep
        # No retries: a request without an answer may have been stored.
        self._producer = Producer(
            namesrv=options.namesrv, broker=options.broker, group=options.group, timeout_ms=options.timeout_ms,
            retries=0, tls=options.tls or False, credentials=options.credentials)
        try:
            self._consumer = PullConsumer(
                namesrv=options.namesrv, broker=options.broker, group=options.group,
                timeout_ms=options.timeout_ms, tls=options.tls or False, credentials=options.credentials)
        except BaseException:
            self._producer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
        self._producer.close()

    def send(self, request: Request) -> None:
        """Send a request and wait until it is stored. Raises RemotingError.

        If the broker refuses several messages, their halves are sent: the request may be too long for its
        ``maxMessageSize`` or its segments. So the last refusal is that of one message.
        """
        try:
            self._producer.send_encoded(request.topic, request.body, request.properties, queue_id=request.queue_id)
        except RemotingCommandError as error:
            if request.count == 1 or error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            for half in request.halves():
                self.send(half)

    def refuse(self, needs: Iterable[Need]) -> None:
        """Raise MessageIllegalError if a broker would refuse a message in each try."""
        for need in needs:
            queues = self._producer.queues(need.topic)
            limits.refuse(
                need, 1 + max((one.queue_id for one in queues), default=-1),
                self._consumer.broker_settings(need.topic), SystemClock().now_ms())

    def starts(self, topics: Sequence[str]) -> Starts:
        """Return the present ends of the queues of some topics and of the timer queue."""
        return {
            topic: {
                f"{queue.broker_name}/{queue.queue_id}": self._consumer.max_offset(queue)
                for queue in self._queues(topic)
            }
            for topic in (*topics, TIMER_TOPIC)
        }

    def last_number(self, prefix: str, starts: Starts) -> int:
        """Return the greatest number of a batch in the queues after ``starts``, or -1."""
        found = -1
        for topic, ends in starts.items():
            self._wait_dispatched(topic)
            for queue in self._queues(topic):
                at = ends.get(f"{queue.broker_name}/{queue.queue_id}", 0)
                for message in self._messages(queue, at):
                    name = message.properties.get(TXN, "")
                    if name.startswith(prefix):
                        found = max(found, int(name.removeprefix(prefix)))
        return found

    def _queues(self, topic: str) -> list[MessageQueue]:
        try:
            return self._consumer.queues(topic)
        except RemotingCommandError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return []
            raise

    def _wait_dispatched(self, topic: str) -> None:
        """Wait until the queues have units for all stored messages."""
        if not self._queues(topic):
            return
        for _ in range(_TRIES):
            figures = self._consumer.runtime_info(topic)
            if all(int(one.get("dispatchBehindBytes", 0)) <= 0 for one in figures.values()):
                return
            self._sleep(_WAIT_S)
        raise RemotingError(f"the queues of {topic} are still not written to the end of the log")

    def _messages(self, queue: MessageQueue, offset: int) -> Iterator[MessageExt]:
        end = self._consumer.max_offset(queue)
        while offset < end:
            found = self._consumer.pull(queue, offset, max_count=_PULL)
            yield from found.messages
            if found.next_begin_offset <= offset:
                return
            offset = found.next_begin_offset


def publish(
    options: WriteOptions, rows: Callable[[int], Iterable[tuple[int, pa.RecordBatch]]], prefix: str,
    starts: Starts, sleep: Sleep, *, begun: bool, refused: Callable[[], None],
    connect: Callable[[WriteOptions, Sleep], Publisher] = Publisher,
) -> int:
    """Send the messages of a batch that the log does not have. Return the number of messages sent.

    ``rows`` returns staged rows from a number onwards, each batch with the number of its first row. ``begun`` is
    True if an earlier try may have sent some. ``refused`` is called if the broker refuses a message and has stored
    none of the batch. Raises RemotingError if the broker cannot be reached or refuses a message, or
    MessageIllegalError; the next try then neither loses nor repeats a message.
    """
    with connect(options, sleep) as publisher:
        first = publisher.last_number(prefix, starts) + 1 if begun else 0
        if first:
            events.GOES_ON_WITH_A_BATCH.log(_log, txn=prefix, first=first)
        sent = 0
        try:
            with closing(read_ahead(requests_of(rows(first), prefix), _AHEAD)) as requests:
                for request in requests:
                    _send_surely(publisher, request, options, prefix, starts, sleep)
                    sent += request.count
        except (MessageIllegalError, RemotingCommandError) as error:
            if not _is_passing(error) and publisher.last_number(prefix, starts) < 0:
                refused()
            raise
        return sent


def _is_passing(error: StoreError) -> bool:
    """Return whether the same request may be stored later without a change of the broker."""
    return not isinstance(error, MessageIllegalError) and (
        not isinstance(error, RemotingCommandError) or error.code in _PASSING)


def _send_surely(
    publisher: Publisher, request: Request, options: WriteOptions, prefix: str, starts: Starts,
    sleep: Sleep,
) -> None:
    """Send a request. Without an answer, or if the broker is busy, search the log before sending it again."""
    last = request.first + request.count - 1
    for tries in range(1, _SENDS + 1):
        try:
            publisher.send(request)
            return
        except RemotingError as error:
            if not _is_passing(error) or tries == _SENDS:
                raise
            sleep(options.timeout_ms * tries / 1000)
            known = publisher.last_number(prefix, starts)
            if known >= last:
                return
            if known >= request.first:
                raise  # only a part is stored: the next try of the batch starts after that part
            events.SENDS_A_REQUEST_AGAIN.log(_log, txn=prefix, first=request.first, cause=error)
