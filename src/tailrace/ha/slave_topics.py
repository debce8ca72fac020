"""What the dispatch of a slave must know of a topic before it writes to its queues.

Rules of the copy, see `tailrace.ha.metadata_copy`:
  SM5  A queue of a topic that this slave does not know is made after its master was asked for the topic (request 351),
       because queues of batches have another form. Until it answers, dispatch waits.
  SM6  A queue whose offsets go back to 0 is removed and begins again: a master of RocketMQ has deleted its topic, and
       created it again. With Tailrace a queue begins again at a higher offset, see `MetadataCopy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from tailrace import events
from tailrace.env.supervision import failed
from tailrace.errors import DispatchWaitsError, RemotingError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.names import LMQ_PREFIX
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import GetTopicConfigRequestHeader
from tailrace.ha.faults import Fault
from tailrace.ha.slave import Slave
from tailrace.ha.slave_comparison import Run
from tailrace.logs import get_logger
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.remoting.client import RemotingClient
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.slave_lives import begin_queue_again

__all__ = ["SlaveTopics"]

_log = get_logger(__name__)
_TIMEOUT_MS: Final = 5000
_AGAIN_S: Final = 3.0
ABSENT_MAX: Final = 10_000
"""Topics that the master does not have and whose records are still in the log, remembered until the next copy."""


class _Loop(Protocol):
    def call_soon_threadsafe(self, call: Callable[..., object], /, *args: Any) -> object: ...


@final
class SlaveTopics:
    """Answers the dispatch of a slave in its thread; everything else runs in the event loop."""

    def __init__(
        self, loop: _Loop, slave: Slave, topics: TopicConfigManager, store: DefaultMessageStore, client: RemotingClient,
        run: Run,
    ) -> None:
        self._loop, self._slave, self._topics, self._store = loop, slave, topics, store
        self._client, self._run = client, run
        self._absent: set[str] = set()
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        """Topics for which an answer is awaited or a queue is being removed; one or two, because dispatch waits."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = ""

    async def stop(self) -> None:
        """Ask no more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    def copied(self) -> None:
        """Note that the table of topics was copied: topics that were absent may be in it now."""
        self._absent.clear()
        self._slave.faults.end(Fault.DISPATCH)

    # -- called by dispatch

    def may_create(self, topic: str) -> None:
        """Return if a queue of ``topic`` may be made. Raises DispatchWaitsError while the master is asked."""
        if topic in self._topics.table or topic in self._absent or topic.startswith(LMQ_PREFIX) or (
            self._topics.is_system_topic(topic)
        ):
            return
        self._begin(topic, self._ask, topic)

    def begins_again(self, topic: str, queue_id: int, phy_offset: int) -> None:
        """Have a queue removed that begins again at a position. Raises DispatchWaitsError."""
        self._begin(topic, self._remove, topic, queue_id, phy_offset)

    def _begin(self, topic: str, work: Callable[..., Any], *args: Any) -> None:
        with self._lock:
            is_new = topic not in self._busy
            self._busy.add(topic)
        if is_new:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._start, topic, work, args)
        raise DispatchWaitsError(topic)

    def _start(self, topic: str, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        async def run() -> None:
            try:
                await work(*args)
            except Exception:  # noqa: BLE001 - dispatch asks again
                failed("SlaveTopics")
                await asyncio.sleep(_AGAIN_S)
            finally:
                with self._lock:
                    self._busy.discard(topic)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, topic: str) -> None:
        try:
            if not self._slave.master_address:
                raise RemotingError("no name server knows the master")
            answer = await self._client.ask(
                self._slave.master_address, RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader(topic),
                ok=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST), timeout_ms=_TIMEOUT_MS)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self._slave.faults.end(Fault.DISPATCH)
                if len(self._absent) >= ABSENT_MAX:
                    self._absent.clear()
                self._absent.add(topic)
                return
            config = TopicConfig.from_json(fastjson.loads(answer.body), topic)
            # A copy of the whole table that came in the meantime is newer.
            await self._run(lambda: self._topics.change(
                lambda draft: draft.put(topic, config) if draft.get(topic) is None else None))
            self._slave.faults.end(Fault.DISPATCH)
        except (RemotingError, StoreError, OSError, ValueError, TypeError, AttributeError) as error:
            self._slave.faults.begin(Fault.DISPATCH, f"topic {topic}: {error}")
            if self._said != topic:
                self._said = topic
                events.DISPATCH_WAITS_FOR_A_TOPIC_OF_THE_MASTER.log(_log, topic=topic, cause=error)
            await asyncio.sleep(_AGAIN_S)

    async def _remove(self, topic: str, queue_id: int, phy_offset: int) -> None:
        await self._run(lambda: begin_queue_again(self._store, topic, queue_id, phy_offset))
