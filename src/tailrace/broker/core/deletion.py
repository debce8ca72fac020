"""What a running broker forgets with topics and groups that are deleted (see ``node.deletion``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, final

from tailrace.env.pauses import in_steps, pause
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand
from tailrace.node.deletion import STEP, Deleted, GroupState, StateFiles
from tailrace.node.message_request_mode import MessageRequestModeManager

if TYPE_CHECKING:
    from tailrace.broker.core.context import BrokerContext

__all__ = ["BrokerState", "deleted_answer"]


@final
class BrokerState(GroupState):
    """The state of groups in the memory of a broker, and in the files that it does not have open."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._unused = StateFiles(broker.store.file_system, broker.store.config_dir, (broker.offsets.other_file,))
        self.modes = MessageRequestModeManager(broker.store.file_system, broker.store.config_dir)
        """Request modes of groups."""
        self.modes.load()
        self.on_loop: list[Callable[[set[str], set[str]], None]] = []
        """Functions that forget topics and groups in tables of the event loop, which calls them."""

    def pause(self) -> None:
        """Let the event loop work."""
        pause()

    def groups(self) -> set[str]:
        """Return the names of all groups that have a configuration or offsets."""
        pairs = in_steps(self._broker.offsets.pairs(), STEP, self.pause)
        return {*list(self._broker.groups.table), *(group for _, group in pairs)}

    def forget(self, topics: set[str], also: Callable[[], None]) -> None:
        """Forget offsets and request modes of topics."""
        def files() -> None:
            self._unused.forget(topics, also)

        self._broker.offsets.remove_topics(
            topics, lambda: self.modes.forget(lambda topic, _: topic in topics, files))

    def forgotten(self, topics: set[str]) -> None:
        """Forget the statistics of topics, and what the event loop has of them."""
        self._forget(topics, set())

    def delete_groups(self, groups: set[str], *, offsets: set[str]) -> Deleted:
        """Delete groups with their topics, and the offsets of those in ``offsets``: all of them or none.

        Each state file is written once. Raises OSError or FatalStorageError; then nothing is deleted.
        """
        broker = self._broker

        def configuration() -> None:
            broker.groups.delete(
                *groups, also=partial(broker.offsets.remove_groups, offsets) if offsets else None)

        done = broker.store.deletion.delete_groups(
            groups, lambda: self.modes.forget(lambda _, name: name in groups, configuration))
        self._forget(set(), groups)
        return done

    def _forget(self, topics: set[str], groups: set[str]) -> None:
        broker = self._broker
        broker.traffic.forget_deleted(topics, groups)
        broker.pop_metrics.forget_deleted(topics, groups)

        def forget() -> None:
            broker.transactions.metrics.forget(topics)
            for function in self.on_loop:
                function(topics, groups)

        with contextlib.suppress(RuntimeError):  # the loop has been closed
            broker.loop.call_soon_threadsafe(forget)


def deleted_answer(request: RemotingCommand, done: Deleted, kept_offsets: str = "") -> RemotingCommand:
    """Return the answer to a deletion, which names what was deleted and what is kept."""
    kept = done.reasons
    if kept_offsets:
        kept.append(kept_offsets)
    return request.answer(
        remark=f"kept: {'; '.join(kept)}" if kept else None,
        body=fastjson.dumps({"deletedTopics": done.topics, "kept": kept}))
