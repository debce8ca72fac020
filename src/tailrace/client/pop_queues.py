"""Queues in mode POP: the broker keeps the offsets, and each message is acknowledged by its receipt.

A popped message is invisible to other members for a time. It is redelivered unless it is acknowledged before. The time
is extended while a listener runs, and changed to the delay of a retry when a listener fails.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import defaultdict
from typing import Final, final

from tailrace import events
from tailrace.client.broker_calls import BrokerCalls, decode_all
from tailrace.client.failures import Failures
from tailrace.client.process_queue import ProcessQueue
from tailrace.client.routes import MessageQueue
from tailrace.client.subscription import Subscription
from tailrace.env.clock import Clock
from tailrace.env.supervision import caught
from tailrace.errors import RemotingCommandError, RemotingError
from tailrace.formats import fastjson
from tailrace.formats.names import FIRST_POP_TIME, POP_CK
from tailrace.formats.pop import ExtraInfo, real_topic, retry_flag
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from tailrace.logs import get_logger
from tailrace.model import MessageExt

__all__ = ["PopQueue", "Popping", "retry_delay_s"]

_log = get_logger(__name__)

POLL_MS: Final = 15_000
"""For how long a broker holds a pop without a message, as RocketMQ's clients ask for."""
_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Until a message whose listener failed is redelivered, by the number of deliveries, as in RocketMQ."""
_NOTHING: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL)
_ACK_TRIES: Final = 3
_ACK_AGAIN_S: Final = 1.0
_ACKS_MAX: Final = 500
"""Receipts of one request."""


def retry_delay_s(message: MessageExt, level: int) -> int:
    """Return the delay of a retry: of ``level``, 0 for the next one of the message."""
    return _DELAYS_S[min(level or message.reconsume_times, len(_DELAYS_S) - 1)]


class PopQueue(ProcessQueue):
    """Popped messages between the pop and the end of their consumption; it has no offsets."""

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(queue, -1)
        self.written = -1
        self._sizes: dict[int, int] = {}

    @property
    def count(self) -> int:
        """Number of messages that are not finished."""
        return len(self._sizes)

    @property
    def span(self) -> int:
        """Nothing: the broker has the offsets."""
        return 0

    @property
    def commit_offset(self) -> int:
        """Nothing to commit."""
        return -1

    def add(self, messages: list[MessageExt], next_offset: int = -1) -> None:
        """Take over what a pop has found."""
        for message in messages:
            self._sizes[id(message)] = message.store_size
            self.bytes += message.store_size
        self.ready.extend(messages)

    def finish(self, message: MessageExt) -> int:
        """Note that a message is consumed; return its size, 0 if it was finished before."""
        size = self._sizes.pop(id(message), 0)
        self.bytes -= size
        self.changed.set()
        return size


@final
class Popping:
    """Pops, acknowledges and extends for one group."""

    def __init__(
        self, calls: BrokerCalls, wanted: dict[str, Subscription], clock: Clock, failures: Failures, *,
        invisible_ms: int, batch: int, from_first: bool,
    ) -> None:
        self._failures = failures
        self._calls = calls
        self._wanted = wanted
        self._clock = clock
        self._invisible_ms = invisible_ms
        self._batch = batch
        self._init_mode = 0 if from_first else 1
        self._acks: defaultdict[MessageQueue, list[str]] = defaultdict(list)
        """Receipts to be sent, by the queue whose broker gets them."""
        self._acking: set[asyncio.Task[None]] = set()

    async def pop(self, queue: MessageQueue) -> list[MessageExt]:
        """Return messages of a queue (-1: of all queues of the broker), empty if none came in time."""
        wanted = self._wanted.get(queue.topic) or Subscription(queue.topic)
        header = PopMessageRequestHeader(
            self._calls.group, queue.topic, queue.queue_id, self._batch, self._invisible_ms, POLL_MS,
            self._clock.now_ms(), self._init_mode, exp_type=wanted.kind, exp=wanted.expression)
        answer = await self._calls.call(
            queue, RequestCode.POP_MESSAGE, header, ok=(ResponseCode.SUCCESS, *_NOTHING), extra_ms=POLL_MS)
        if answer.code == ResponseCode.POLLING_FULL:
            raise RemotingCommandError(answer.code, answer.remark or "too many pops wait", queue.broker_name)
        if answer.code != ResponseCode.SUCCESS:
            return []
        messages = self._with_receipts(queue, answer)
        kept = wanted.keep(messages)
        if len(kept) != len(messages):  # a broker compares hashes of tags only
            wrong = {id(message) for message in messages} - {id(message) for message in kept}
            for message in messages:
                if id(message) in wrong:
                    self.acknowledge(queue, message)
        return kept

    @staticmethod
    def _with_receipts(queue: MessageQueue, answer: RemotingCommand) -> list[MessageExt]:
        header = answer.read(PopMessageResponseHeader)
        starts = {}
        for part in filter(None, (header.start_offset_info or "").split(";")):
            flag, queue_id, start = part.split(" ")
            starts[flag, int(queue_id)] = int(start)
        messages = decode_all(answer.body)
        for message in messages:
            if POP_CK not in message.properties:
                flag = retry_flag(message.topic)
                start_offset = starts.setdefault((flag, message.queue_id), message.queue_offset)
                message.properties[POP_CK] = ExtraInfo(
                    start_offset, header.pop_time, header.invisible_time, header.revive_qid, flag, queue.broker_name,
                    message.queue_id, message.queue_offset).encode()
            message.properties.setdefault(FIRST_POP_TIME, str(header.pop_time))
            message.topic = queue.topic
        return messages

    def left_ms(self, message: MessageExt) -> int:
        """Return the time until another member gets the message."""
        receipt = ExtraInfo.decode(message.properties[POP_CK])
        return receipt.pop_time + receipt.invisible_time - self._clock.now_ms()

    # --- acknowledgements

    def acknowledge(self, queue: MessageQueue, message: MessageExt) -> None:
        """Have a consumed message acknowledged; those of one moment share a request."""
        waiting = self._acks[queue]
        waiting.append(message.properties[POP_CK])
        if len(waiting) == 1:
            task = asyncio.create_task(self._send_acks(queue))
            self._acking.add(task)
            task.add_done_callback(self._acking.discard)

    async def _send_acks(self, queue: MessageQueue) -> None:
        await asyncio.sleep(0)  # what is acknowledged in the same turn of the loop
        receipts = self._acks.pop(queue, [])
        for first in range(0, len(receipts), _ACKS_MAX):
            with caught("acknowledgements"):  # or the others would not be sent
                await self._send_some(queue, receipts[first : first + _ACKS_MAX])

    async def _send_some(self, queue: MessageQueue, receipts: list[str]) -> None:
        for left in reversed(range(_ACK_TRIES)):
            try:
                if len(receipts) == 1:
                    await self._send_one(queue, receipts[0])
                else:
                    await self._calls.call(
                        queue, RequestCode.BATCH_ACK_MESSAGE, None, body=self._batch_body(queue, receipts))
            except RemotingError as error:
                if left and not isinstance(error, RemotingCommandError):
                    await asyncio.sleep(_ACK_AGAIN_S)
                    continue
                events.ACKNOWLEDGEMENT_FAILED.log(
                    _log, group=self._calls.group, topic=queue.topic, broker=queue.broker_name, count=len(receipts),
                    reason=error)
                self._failures.report("acknowledge", error, topic=queue.topic)
            return

    async def _send_one(self, queue: MessageQueue, receipt: str) -> None:
        info = ExtraInfo.decode(receipt)
        await self._calls.call(queue, RequestCode.ACK_MESSAGE, AckMessageRequestHeader(
            self._calls.group, real_topic(queue.topic, self._calls.group, info.flag), info.queue_id, receipt,
            info.queue_offset))

    def _batch_body(self, queue: MessageQueue, receipts: list[str]) -> bytes:
        bits: defaultdict[ExtraInfo, int] = defaultdict(int)
        for receipt in receipts:
            info = ExtraInfo.decode(receipt)
            bits[info._replace(queue_offset=-1)] |= 1 << (info.queue_offset - info.start_offset)
        return fastjson.dumps({"brokerName": queue.broker_name, "acks": [
            {"c": self._calls.group, "t": queue.topic, "r": info.flag, "so": info.start_offset, "q": info.queue_id,
             "rq": info.revive_queue_id, "pt": info.pop_time, "it": info.invisible_time,
             "b": base64.b64encode(places.to_bytes((places.bit_length() + 7) // 8, "little")).decode()}
            for info, places in bits.items()]})

    async def flush(self) -> None:
        """Wait until all acknowledgements were sent."""
        while self._acking:
            await asyncio.gather(*self._acking)

    # --- invisible time

    async def change(self, queue: MessageQueue, message: MessageExt, time_ms: int, *, suspend: bool = False) -> None:
        """Have a message redelivered after another time, with a new receipt. Raises RemotingError.

        With ``suspend`` its next delivery is not counted as a retry.
        """
        receipt = message.properties[POP_CK]
        info = ExtraInfo.decode(receipt)
        answer = await self._calls.call(
            queue, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeRequestHeader(
                self._calls.group, real_topic(queue.topic, self._calls.group, info.flag), info.queue_id, receipt,
                info.queue_offset, time_ms, suspend=suspend))
        found = answer.read(ChangeInvisibleTimeResponseHeader)
        message.properties[POP_CK] = info._replace(
            start_offset=info.queue_offset, pop_time=found.pop_time, invisible_time=found.invisible_time,
            revive_queue_id=found.revive_qid).encode()

    def keep(self, queue: MessageQueue, messages: list[MessageExt]) -> Keeping:
        """Keep messages invisible to others until the end of what is returned."""
        return Keeping(self, queue, messages)

    async def extend_always(self, queue: MessageQueue, message: MessageExt) -> None:
        """Extend the invisible time of a message, each time for the last third of it."""
        while True:
            try:
                await self.change(queue, message, self._invisible_ms)
            except Exception as error:  # noqa: BLE001 - the message is delivered again, and this says why
                events.MESSAGE_NOT_KEPT_INVISIBLE.log(
                    _log, group=self._calls.group, topic=queue.topic, queue=message.queue_id,
                    offset=message.queue_offset, reason=repr(error))
                self._failures.report("acknowledge", error, topic=queue.topic, messages=[message])
                return
            await asyncio.sleep(self.quiet_s(message))

    def quiet_s(self, message: MessageExt) -> float:
        """Return the time until a message has to be extended."""
        return max(0.0, self.left_ms(message) - self._invisible_ms / 3) / 1000

    def abandon(self, queue: MessageQueue, poll: asyncio.Task[list[MessageExt]]) -> None:
        """Give back what a poll finds that no queue waits for; a broker cannot be asked to end a poll."""
        self._calls.instance.finish_before_close(self._give_back_found(queue, poll))

    async def _give_back_found(self, queue: MessageQueue, poll: asyncio.Task[list[MessageExt]]) -> None:
        with caught("abandoned pops"), contextlib.suppress(RemotingError):
            found = await poll  # a RemotingError: its connection was closed, so the broker also ends the poll
            await self.give_back(queue, found)
            await self.flush()

    async def give_back(self, queue: MessageQueue, messages: list[MessageExt]) -> None:
        """Have messages redelivered soon that no listener has got; if the change fails, after their invisible time."""
        await asyncio.gather(
            *(self.change(queue, message, 1000, suspend=True) for message in messages), return_exceptions=True)


@final
class Keeping:
    """Messages that are kept invisible; most listeners end before anything has to be done for that."""

    def __init__(self, popping: Popping, queue: MessageQueue, messages: list[MessageExt]) -> None:
        self._popping = popping
        self._queue = queue
        self._messages = messages
        self._tasks: list[asyncio.Task[None]] = []
        quiet_s = min(map(popping.quiet_s, messages))
        self._timer = asyncio.get_running_loop().call_later(quiet_s, self._begin)

    def _begin(self) -> None:
        self._tasks = [
            asyncio.create_task(self._popping.extend_always(self._queue, message)) for message in self._messages]

    async def end(self) -> None:
        """Extend no more."""
        self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
