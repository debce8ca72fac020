"""Where the queues begin that have no message on the master any more.

A new copy of a log gets no record of a queue whose messages have all expired. After a promotion it would begin at 0,
and offsets that clients remember would name other messages (D5 of ``store.lives``). So a slave asks for each topic
by a request that every broker answers. While the master shows messages of a queue that is not here, each copy asks
again: they are on their way, or their files were deleted and the master has not counted that yet, as RocketMQ for some
seconds.
"""

from __future__ import annotations

from typing import Final, final

from tailrace.errors import RemotingCommandError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import GetTopicStatsInfoRequestHeader
from tailrace.ha.slave_comparison import Run
from tailrace.node.deletion import Deletion
from tailrace.node.topic_config import TopicConfigManager
from tailrace.remoting.client import RemotingClient
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.multi_dispatch import is_lmq

__all__ = ["QueueEnds"]

_TIMEOUT_MS: Final = 30_000


@final
class QueueEnds:
    """The topics of which a slave knows where each of their queues begins. Lives in the event loop."""

    def __init__(
        self, store: DefaultMessageStore, topics: TopicConfigManager, deletion: Deletion, client: RemotingClient,
        run: Run,
    ) -> None:
        self._store, self._topics, self._deletion, self._client, self._run = store, topics, deletion, client, run
        self._asked: set[str] = set()

    def forget(self) -> None:
        """Ask again, because another master may answer."""
        self._asked.clear()

    async def copy(self, master: str) -> None:
        """Ask the master at an address for the topics of which a queue is not known.

        A refused topic does not stop the others: they are noted, then its error is raised, and the next copy asks for
        it again. After another RemotingError, or an error of the file of the table, the next copy asks for all again.
        """
        refused: RemotingCommandError | None = None
        ends: dict[str, dict[int, int]] = {}
        asked = set[str]()
        for topic, config in list(self._topics.table.items()):
            if topic in self._asked or is_lmq(topic):
                continue
            missing = {
                queue_id for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
                if (topic, queue_id) not in self._store.queues.table}
            try:
                places = await self._places(master, topic, missing) if missing else {}
                if found := {queue_id: end for queue_id, (begin, end) in places.items() if begin >= end > 0}:
                    ends[topic] = found
                if all(begin >= end for begin, end in places.values()):
                    asked.add(topic)
            except RemotingCommandError as error:
                refused = error
        if ends:
            await self._run(lambda: self._deletion.begin_queues(ends))
        self._asked |= asked
        if refused is not None:
            raise refused

    async def _places(self, master: str, topic: str, missing: set[int]) -> dict[int, tuple[int, int]]:
        """Return begin and end of those queues on the master; empty if it has no such topic."""
        answer = await self._client.ask(
            master, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic), timeout_ms=_TIMEOUT_MS,
            ok=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST))
        if answer.code != ResponseCode.SUCCESS:  # deleted since the table of topics was copied
            return {}
        places = ((fastjson.loads(queue), place) for queue, place in fastjson.loads(answer.body)["offsetTable"].items())
        return {
            int(queue["queueId"]): (int(place["minOffset"]), int(place["maxOffset"])) for queue, place in places
            if queue["queueId"] in missing}
