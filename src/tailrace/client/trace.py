"""Message trace in RocketMQ's format: actions of producers and consumers on each message, by its id.

The entries go to a topic of the brokers, where `mqadmin queryMsgTraceById` finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, final

from tailrace import events
from tailrace.client.send_result import SendResult
from tailrace.env.clock import Clock
from tailrace.env.entropy import SystemEntropy
from tailrace.env.supervision import supervised
from tailrace.errors import MessageIllegalError, RemotingError
from tailrace.formats.names import MSG_REGION, TRACE_ON
from tailrace.logs import get_logger
from tailrace.model import Message, MessageExt

__all__ = ["Consuming", "MessageTrace"]

_log = get_logger(__name__)

TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
DEFAULT_REGION: Final = "DefaultRegion"
LINGER_S: Final = 0.5
ENTRIES_MAX: Final = 100
"""Number of entries in one message of the trace topic."""
WAITING_MAX: Final = 2_048
"""Number of entries that wait. Further ones are dropped, so that a trace never delays messages, as in RocketMQ."""
_NORMAL, _HALF, _COMMIT, _DELAY, _ORDER = range(5)
_SUCCESS, _TIME_OUT, _EXCEPTION, _NULL, _FAILED = range(5)


class Consuming(NamedTuple):
    """A call of a listener that has begun."""

    request_id: str
    began_ms: int
    region: str


@final
class MessageTrace:
    """Collects entries and sends them with ``send``, every 500 ms or 100 entries."""

    def __init__(self, send: Callable[[Message], Awaitable[SendResult]], group: str, clock: Clock, topic: str) -> None:
        self._send = send
        self._group = group
        self._clock = clock
        self._topic = topic
        self._entries: list[tuple[str, list[str]]] = []
        self._wake = asyncio.Event()
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._dropped = 0
        self._fails = False

    def sent(self, message: Message, result: SendResult, address: str, began_ms: int, *, half: bool = False) -> None:
        """Note a message that was stored, unless its broker has traces off."""
        if not result.region or message.topic == self._topic:
            return
        is_delayed = message.delay is not None or message.deliver_at is not None or bool(message.delay_level)
        kind = _HALF if half else _DELAY if is_delayed else _NORMAL
        keys = " ".join(message.keys)
        self._add(
            ("Pub", began_ms, result.region, self._group, message.topic, result.msg_id, message.tags or "", keys,
             address, len(message.body), self._clock.now_ms() - began_ms, kind, result.offset_msg_id,
             _java(value=result.status == "SEND_OK")), [result.msg_id, *message.keys])

    def transaction_ended(
        self, message: Message | MessageExt, msg_id: str, address: str, *, commit: bool | None, checked: bool
    ) -> None:
        """Note a decision about a half message."""
        state = "UNKNOW" if commit is None else "COMMIT_MESSAGE" if commit else "ROLLBACK_MESSAGE"
        region = message.properties.get(MSG_REGION) or DEFAULT_REGION
        self._add(
            ("EndTransaction", self._clock.now_ms(), region, self._group, message.topic, msg_id, message.tags or "",
             " ".join(message.keys), address, _COMMIT, msg_id, state, _java(value=checked)), [msg_id, *message.keys])

    def recalled(self, topic: str, msg_id: str, region: str) -> None:
        """Note a timer message that was taken back."""
        self._add(("Recall", self._clock.now_ms(), region, self._group, topic, msg_id, _java(value=True)), [msg_id])

    def consuming(self, message: MessageExt) -> Consuming | None:
        """Note that a listener begins with a message; None if its broker has traces off."""
        if message.properties.get(TRACE_ON) == "false":
            return None
        made = Consuming(
            f"{SystemEntropy().u64():016X}{SystemEntropy().u64():016X}", self._clock.now_ms(),
            message.properties.get(MSG_REGION) or DEFAULT_REGION)
        msg_id = message.unique_key or message.msg_id
        self._add(
            ("SubBefore", made.began_ms, made.region, self._group, made.request_id, msg_id, message.reconsume_times,
             " ".join(message.keys)), [msg_id, *message.keys])
        return made

    def consumed(self, message: MessageExt, begun: Consuming, *, ok: bool) -> None:
        """Note the end of a listener call and its result."""
        msg_id = message.unique_key or message.msg_id
        now = self._clock.now_ms()
        self._add(
            ("SubAfter", begun.request_id, msg_id, now - begun.began_ms, _java(value=ok), " ".join(message.keys),
             _SUCCESS if ok else _FAILED, now, self._group), [msg_id, *message.keys])

    def _add(self, fields: tuple[object, ...], keys: list[str]) -> None:
        if len(self._entries) >= WAITING_MAX:
            if not self._dropped:
                events.TRACE_ENTRIES_DROPPED.log(_log, group=self._group, limit=WAITING_MAX)
            self._dropped += 1
            return
        self._entries.append(("\x01".join(map(str, fields)) + "\x02", keys))
        self._wake.set()
        if len(self._entries) >= ENTRIES_MAX:
            self._full.set()
        if self._task is None:
            self._task = asyncio.create_task(supervised(
                "trace", self._send_some, until=lambda: self._closing and not self._entries))

    async def _send_some(self) -> None:
        """Wait for entries, and send them; they are dropped if that fails."""
        if not self._entries:
            await self._wake.wait()
        if len(self._entries) < ENTRIES_MAX and not self._closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), LINGER_S)
        self._wake.clear()
        self._full.clear()
        some, self._entries = self._entries[:ENTRIES_MAX], self._entries[ENTRIES_MAX:]
        if not some:
            return
        keys = dict.fromkeys(key for _, names in some for key in names if key)
        try:
            await self._send(Message(
                topic=self._topic, body="".join(text for text, _ in some).encode(), keys=list(keys)))
            self._dropped, self._fails = 0, False
        except (RemotingError, MessageIllegalError) as error:
            if self._fails:
                return
            self._fails = True
            events.TRACE_NOT_SENT.log(_log, group=self._group, entries=len(some), reason=error)

    async def close(self) -> None:
        """Send the entries that wait."""
        self._closing = True
        self._wake.set()
        self._full.set()
        if self._task is not None:
            await self._task


def _java(*, value: bool) -> str:
    return "true" if value else "false"
