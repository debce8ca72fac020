"""Clients and groups: requests 34, 35, 46, 38, 14, 15, 41 and 42."""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.broker.client_manager import TAG
from tailrace.broker.context import BrokerContext
from tailrace.broker.processors._bodies import json_object
from tailrace.events import get_logger
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.node.topic_config import RETRY_GROUP_TOPIC_PREFIX
from tailrace.remoting import Channel, RemotingServer

__all__ = ["ClientManageProcessor"]

_log = get_logger(__name__)

# A new group reads a queue from its begin while that is young enough to be in memory, as the
# reference does: 40 % of the 24 GiB that it assumes of a machine it knows nothing about.
IN_MEMORY_BYTES: Final = 24 * 1024**3 * 4 // 10
UNIT_SYS_FLAG: Final = 3
INT32, INT64 = 1 << 31, 1 << 63


@final
class ClientManageProcessor:
    """Heartbeats, group members, offsets and queue locks."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def register(self, server: RemotingServer) -> None:
        """Take over the codes of this processor."""
        server.register(self.heartbeat, RequestCode.HEART_BEAT)
        server.register(self.unregister_client, RequestCode.UNREGISTER_CLIENT)
        server.register(self.check_client_config, RequestCode.CHECK_CLIENT_CONFIG)
        server.register(self.consumer_list, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        server.register(self.query_offset, RequestCode.QUERY_CONSUMER_OFFSET)
        server.register(self.update_offset, RequestCode.UPDATE_CONSUMER_OFFSET)
        server.register(self.lock_batch, RequestCode.LOCK_BATCH_MQ)
        server.register(self.unlock_batch, RequestCode.UNLOCK_BATCH_MQ)

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Register a client's groups: request 34."""
        data = json_object(request)
        client_id = str(data["clientID"])
        for producer in data.get("producerDataSet") or ():
            self._broker.producers.register(
                channel, request, client_id, str(producer["groupName"])
            )
        fingerprint = int(data.get("heartbeatFingerprint") or 0)
        without_sub = bool(data.get("withoutSub", False))
        sub_changed = not fingerprint  # as the reference answers heartbeats of version 1
        for consumer in data.get("consumerDataSet") or ():
            group = str(consumer["groupName"])
            member = self._broker.consumers.find_client(group, client_id)
            known = member is not None and member.fingerprint == fingerprint
            without = fingerprint != 0 and without_sub
            # A member it is in any case; told of a change, it sends its subscriptions next time.
            self._register_consumer(channel, request, client_id, consumer, keep=without)
            member = self._broker.consumers.find_client(group, client_id)
            if without and not known:
                sub_changed = True
            elif member is not None:
                member.fingerprint = fingerprint
        return request.answer(
            ext={
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": "true" if sub_changed else "false",
            }
        )

    def _register_consumer(
        self, channel: Channel, request: RemotingCommand, client_id: str,
        consumer: dict[str, Any], *, keep: bool,
    ) -> None:
        group = str(consumer["groupName"])
        config = self._broker.groups.find_or_create(group)
        if config is None:
            _log.warning("consumer group unknown group=%s client=%s", group, client_id)
            return
        if config.retry_queue_nums > 0:
            # Its route has to exist before the first pull of it, right after this heartbeat.
            self._broker.topics.create_if_missing(
                f"{RETRY_GROUP_TOPIC_PREFIX}{group}", config.retry_queue_nums,
                topic_sys_flag=UNIT_SYS_FLAG if consumer.get("unitMode") else 0,
            )
        self._broker.consumers.register(
            channel, request, client_id, consumer, keep_subscriptions=keep
        )

    def unregister_client(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """A client leaves its groups: request 35."""
        client_id = request.ext["clientID"]
        if group := request.ext.get("producerGroup"):
            self._broker.producers.unregister(channel, group)
        if group := request.ext.get("consumerGroup"):
            self._broker.consumers.unregister(channel, group, client_id)
        return request.answer()

    def check_client_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Whether a subscription can be served: request 46."""
        data = json_object(request)
        subscription = data.get("subscriptionData") or {}
        kind = subscription.get("expressionType") or TAG
        if kind != TAG:
            return request.answer(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}",
            )
        return request.answer()

    def consumer_list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Who is in a group: request 38."""
        group = request.ext["consumerGroup"]
        info = self._broker.consumers.find(group)
        if info is None:
            return request.answer(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}"
            )
        return request.answer(body=fastjson.dumps({"consumerIdList": info.client_ids()}))

    def query_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """How far a group has come: request 14."""
        ext = request.ext
        group, topic, queue_id = ext["consumerGroup"], ext["topic"], int(ext["queueId"])
        offset = self._broker.offsets.query(group, topic, queue_id)
        if offset >= 0:
            return request.answer(ext={"offset": str(offset)})
        if ext.get("setZeroIfNotFound") == "false":
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
            )
        if self._is_young(topic, queue_id):
            return request.answer(ext={"offset": "0"})
        return request.answer(
            ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
        )

    def _is_young(self, topic: str, queue_id: int) -> bool:
        store = self._broker.store
        if store.min_offset_in_queue(topic, queue_id) > 0:
            return False
        if store.max_phy_offset - store.min_phy_offset <= IN_MEMORY_BYTES:
            return True
        first = store.get_message(topic, queue_id, 0, 1).records
        if not first:
            return True
        behind: int = store.max_phy_offset - decode_message(first[0]).phy_offset
        return behind <= IN_MEMORY_BYTES

    def update_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Remember how far a group has come: request 15."""
        ext = request.ext
        topic, group = ext["topic"], ext["consumerGroup"]
        if self._broker.groups.select(group) is None:
            return request.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if self._broker.topics.select(topic) is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist"
            )
        queue_id, offset = int(ext["queueId"]), int(ext["commitOffset"])
        if not 0 <= queue_id < INT32 or not -INT64 <= offset < INT64:
            # It would be written to a file that no Java broker could read any more.
            return request.answer(ResponseCode.INVALID_PARAMETER, "a number is out of its range")
        if self._broker.offsets.is_reset(group, topic, queue_id):
            return request.answer(ResponseCode.SUCCESS, "Offset has been previously reset")
        self._broker.offsets.commit(group, topic, queue_id, offset)
        return request.answer()

    def lock_batch(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Lock queues for orderly consumption: request 41; the answer lists what was locked."""
        data = json_object(request)
        taken = self._broker.locks.try_lock(
            str(data["consumerGroup"]), str(data["clientId"]), list(data.get("mqSet") or ())
        )
        return request.answer(body=fastjson.dumps({"lockOKMQSet": taken}))

    def unlock_batch(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Free queues: request 42."""
        data = json_object(request)
        self._broker.locks.unlock(
            str(data["consumerGroup"]), str(data["clientId"]), list(data.get("mqSet") or ())
        )
        return request.answer()
