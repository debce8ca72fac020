"""To whom a stored message belongs, and the check of a request that names it by its position or id.

The check of requests sees only names. A request that names a message by an offset, an id, a receipt or a handle may
name a message of any topic. Its processor looks the message up and calls `Records.require_record`: the user needs the
permission for the topic or the group to which the message belongs. A message that is missing and one that is
forbidden are refused with the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, final

from tailrace.auth.accesses import GROUP, TOPIC, Access, topic_access
from tailrace.auth.check import AccessControl
from tailrace.errors import RefusalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import LMQ_DISPATCH_SEPARATOR
from tailrace.formats.pop import retry_owner
from tailrace.formats.remoting import RemotingCommand
from tailrace.formats.requests.table import Action
from tailrace.model import MessageExt
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel
from tailrace.requests.caller import RemotingCaller
from tailrace.requests.config_changes import ConfigChanges
from tailrace.requests.reply import Answer, Serve
from tailrace.requests.worker import RequestWorker
from tailrace.timer.properties import PARKED_TOPIC

__all__ = ["Records", "owners_of", "real_topic_of"]

_HOLD_OTHERS: Final = frozenset({
    N.SCHEDULE_TOPIC, N.TIMER_TOPIC, PARKED_TOPIC, N.HALF_TOPIC, N.CHECK_MAX_TIME_TOPIC})
"""Topics that hold messages of other topics, which are in the property REAL_TOPIC."""


def real_topic_of(message: MessageExt) -> str:
    """Return the topic to which a message goes: its own, or the one for which a delay or a transaction holds it."""
    return message.properties.get(N.REAL_TOPIC, "") if message.topic in _HOLD_OTHERS else message.topic


def owners_of(message: MessageExt, action: Action) -> list[Access]:
    """Return the accesses of which one is enough to do something with a message.

    A message of a retry topic belongs to its group, a dead letter to its topic or its group, every other message to
    its topic and to each LMQ queue in which it has a place.
    """
    topic, properties = real_topic_of(message), message.properties
    if topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX):
        group = retry_owner(
            topic, properties.get(N.ORIGIN_GROUP), properties.get(N.REAL_TOPIC), properties.get(N.RETRY_TOPIC))
        return [topic_access(topic if group is None else f"{N.RETRY_GROUP_TOPIC_PREFIX}{group}", action)]
    found = [Access(TOPIC, topic, action)]
    if topic.startswith(N.DLQ_GROUP_TOPIC_PREFIX):
        return [*found, Access(GROUP, topic.removeprefix(N.DLQ_GROUP_TOPIC_PREFIX), action)]
    names = properties.get(N.INNER_MULTI_DISPATCH)
    return found if not names else found + [
        topic_access(name, action) for name in names.split(LMQ_DISPATCH_SEPARATOR) if name.startswith(N.LMQ_PREFIX)]


@final
class Records:
    """The records that requests name. ``control`` is None without users, and then nothing is checked."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, control: AccessControl | None,
        changes: ConfigChanges, cold_reads: RequestWorker,
    ) -> None:
        self._loop, self._store, self._control, self._changes = loop, store, control, changes
        self._cold_reads = cold_reads

    @property
    def are_checked(self) -> bool:
        """Whether there are users."""
        return self._control is not None

    def require_record(
        self, channel: Channel, request: RemotingCommand, message: MessageExt | None, action: Action
    ) -> None:
        """Raise RefusalError unless the user of a request may do something with a message; None if it is missing.

        Any thread may call it.
        """
        if (control := self._control) is not None:
            accesses = [] if message is None else owners_of(message, action)
            self._on_loop(lambda: control.require_record(channel, request, *accesses))

    def require(self, channel: Channel, request: RemotingCommand, *accesses: Access) -> None:
        """Raise RefusalError unless the user of a request may also do all of this. Any thread may call it."""
        if (control := self._control) is not None:
            self._on_loop(lambda: control.require(channel, request, *accesses))

    def first(self, serve: Serve, place: Callable[[RemotingCommand], int | None]) -> Serve:
        """Return a processor of requests that name a record: ``serve``, which never waits for the disk.

        ``place`` returns the position of the record, None if the request names none. If the record is not in memory, a
        thread reads it first; ``serve`` then finds it at hand. Topics and groups that the request lacks are created, as
        by `creates_missing`. Errors of ``place`` are left to ``serve``.
        """
        store, loop, changes = self._store, self._loop, self._changes

        def served(channel: Channel, request: RemotingCommand) -> Answer:
            caller = RemotingCaller(channel, request)
            try:
                at = place(request)
            except (ValueError, RefusalError):
                at = None
            if at is None or at < 0 or not loop.is_running() or store.is_in_memory(at):
                return changes.serve(caller, partial(serve, channel, request))

            def then(record: bytes | None) -> Answer:
                def again() -> Answer:
                    store.at_hand(at, record)
                    try:
                        return serve(channel, request)
                    finally:
                        store.at_hand(-1, None)

                return changes.serve(caller, again)

            group = request.ext.get("group") or request.ext.get("consumerGroup") or ""
            self._cold_reads.submit(caller.reply(), partial(store.record_at, at), then, group)
            return None

        return served

    def _on_loop(self, check: Callable[[], None]) -> None:
        """Call a function in the thread of the event loop, where access control is used."""
        if self._loop is asyncio._get_running_loop() or not self._loop.is_running():
            check()
            return

        async def call() -> None:
            check()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()
