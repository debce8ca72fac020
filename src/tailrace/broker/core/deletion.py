"""What a running broker forgets with topics and groups that are deleted (see ``node.deletion``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import final

from tailrace.broker.statistics.pop_metrics import PopMetrics
from tailrace.broker.statistics.traffic import Traffic
from tailrace.broker.transactions.service import TransactionService
from tailrace.env.callbacks import Callbacks
from tailrace.env.pauses import in_steps, pause
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.deletion import STEP, Deleted, GroupState, StateFiles
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager

__all__ = ["BrokerState", "deleted_answer"]


@final
class BrokerState(GroupState):
    """The state of groups in the memory of a broker, and in the files that it does not have open."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager, traffic: Traffic, pop_metrics: PopMetrics, transactions: TransactionService,
    ) -> None:
        self._loop, self._store, self._groups, self._offsets = loop, store, groups, offsets
        self._traffic, self._pop_metrics, self._transactions = traffic, pop_metrics, transactions
        self._unused = StateFiles(store.file_system, store.config_dir, (offsets.other_file,))
        self.modes = MessageRequestModeManager(store.file_system, store.config_dir)
        """Request modes of groups."""
        self.modes.load()
        self.deleted = Callbacks[[set[str], set[str]]]()
        """Get topics and groups that were deleted, on the event loop, to forget them in its tables."""

    def pause(self) -> None:
        """Let the event loop work."""
        pause()

    def groups(self) -> set[str]:
        """Return the names of all groups that have a configuration or offsets."""
        pairs = in_steps(self._offsets.pairs(), STEP, self.pause)
        return {*list(self._groups.table), *(group for _, group in pairs)}

    def forget(self, topics: set[str], also: Callable[[], None]) -> None:
        """Forget offsets and request modes of topics."""
        def files() -> None:
            self._unused.forget(topics, also)

        self._offsets.remove_topics(
            topics, lambda: self.modes.forget(lambda topic, _: topic in topics, files))

    def forgotten(self, topics: set[str]) -> None:
        """Forget the statistics of topics, and what the event loop has of them."""
        self._forget(topics, set())

    def delete_groups(self, groups: set[str], *, offsets: set[str]) -> Deleted:
        """Delete groups with their topics, and the offsets of those in ``offsets``: all of them or none.

        Each state file is written once. Raises OSError or FatalStorageError; then nothing is deleted.
        """

        def configuration() -> None:
            self._groups.delete(
                *groups, also=partial(self._offsets.remove_groups, offsets) if offsets else None)

        done = self._store.deletion.delete_groups(
            groups, lambda: self.modes.forget(lambda _, name: name in groups, configuration))
        self._forget(set(), groups)
        return done

    def _forget(self, topics: set[str], groups: set[str]) -> None:
        self._traffic.forget_deleted(topics, groups)
        self._pop_metrics.forget_deleted(topics, groups)

        def forget() -> None:
            self._transactions.metrics.forget(topics)
            self.deleted(topics, groups)

        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(forget)


def deleted_answer(request: RemotingCommand, done: Deleted, kept_offsets: str = "") -> RemotingCommand:
    """Return the answer to a deletion, which names what was deleted and what is kept."""
    kept = done.reasons
    if kept_offsets:
        kept.append(kept_offsets)
    return request.answer(
        remark=f"kept: {'; '.join(kept)}" if kept else None,
        body=fastjson.dumps({"deletedTopics": done.topics, "kept": kept}))
