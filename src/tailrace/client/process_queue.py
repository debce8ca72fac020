"""State of a queue in a consumer: the messages that were pulled, and those that are consumed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from tailrace.client.routes import MessageQueue
from tailrace.model import MessageExt

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """Messages of a queue between the pull and the end of their consumption.

    ``commit_offset`` is the offset of the first message that is not finished, or the next one to pull.
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.next_offset = offset
        """Offset of the next pull."""
        self.written: int | None = None
        """The offset that was committed last."""
        self.dropped = False
        """True if the queue belongs to another member, or to a newer ProcessQueue."""
        self.restart_at: int | None = None
        """Offset at which a dropped queue is consumed again, when no worker has a message of it."""
        self.paused = False
        self.offered = False
        """True if it waits for a worker."""
        self.held = False
        """True if it hands out no message, because another message has to be retried first."""
        self.locked_until = 0.0
        """For a queue that is consumed in order: the end of its lock, in the time of the event loop."""
        self.ready: deque[MessageExt] = deque()
        """Messages that no worker has taken yet."""
        self.running = 0
        """Messages that workers have taken."""
        self.bytes = 0
        self.changed = asyncio.Event()
        """Set when a message is finished, and when the queue is dropped or resumed."""
        self.pulling: asyncio.Task[None] | None = None
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self._unfinished: OrderedDict[int, int] = OrderedDict()

    @property
    def given_up(self) -> bool:
        """True if it was dropped and does not wait for a restart."""
        return self.dropped and self.restart_at is None

    @property
    def count(self) -> int:
        """Number of messages that are not finished."""
        return len(self._unfinished)

    @property
    def span(self) -> int:
        """Offsets between the first and the last message that is not finished."""
        if not self._unfinished:
            return 0
        return next(reversed(self._unfinished)) - next(iter(self._unfinished))

    @property
    def first(self) -> int:
        """Offset of the first message that is not finished; 0 without one."""
        return next(iter(self._unfinished), 0)

    @property
    def commit_offset(self) -> int:
        """Offset of the first message that is not consumed."""
        return next(iter(self._unfinished), self.next_offset)

    def add(self, messages: list[MessageExt], next_offset: int) -> None:
        """Add the messages of a pull."""
        self.next_offset = next_offset
        for message in messages:
            self._unfinished[message.queue_offset] = message.store_size
            self.bytes += message.store_size
        self.ready.extend(messages)

    def finish(self, message: MessageExt) -> int:
        """Note that a message is consumed; return its size, 0 if it was finished before."""
        size = self._unfinished.pop(message.queue_offset, 0)
        self.bytes -= size
        self.changed.set()
        return size

    def drop(self) -> None:
        """Hand out no further message."""
        self.dropped = True
        self.ready.clear()
        self.changed.set()
