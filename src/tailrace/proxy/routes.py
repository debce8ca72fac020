"""QueryRoute and QueryAssignment."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Final, final

from tailrace.config import BrokerConfig
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig, TopicConfigManager
from tailrace.proxy.caller import Caller
from tailrace.proxy.protocol import OK, Code, GrpcError, definition, service
from tailrace.proxy.validation import check_group, check_topic

__all__ = ["RouteActivity"]

_Types = definition.MessageType
_Permission = definition.Permission
_MIXED: Final = (_Types.NORMAL, _Types.FIFO, _Types.DELAY, _Types.TRANSACTION)
ALL_QUEUES: Final = -1


@final
class RouteActivity:
    """Tells clients about queues. ``address`` returns host and port of this endpoint."""

    def __init__(
        self, config: BrokerConfig, topics: TopicConfigManager, groups: SubscriptionGroupManager,
        address: Callable[[], tuple[str, int]],
    ) -> None:
        self._config, self._topics, self._groups, self._address = config, topics, groups, address

    async def route(self, request: Any, caller: Caller) -> Any:
        """Return the queues of a topic."""
        config = self._topic(request.topic)
        broker = self._broker_of(request.endpoints)
        types = _accepted(config)
        queues = [
            definition.MessageQueue(
                topic=request.topic, id=queue_id, permission=permission, broker=broker, accept_message_types=types)
            for queue_id, permission in enumerate(_permissions(config))]
        return service.QueryRouteResponse(status=OK, message_queues=queues)

    async def assignment(self, request: Any, caller: Caller) -> Any:
        """Return what a push consumer receives from: all queues together, or each one for a FIFO group."""
        config = self._topic(request.topic)
        name = check_group(request.group)
        if not config.readable or config.read_queue_nums <= 0:
            raise GrpcError(Code.FORBIDDEN, "no readable queue")
        group = self._groups.select(name)
        fifo = group is not None and group.consume_message_orderly and not group.lite_bind_topic
        broker, permission = self._broker_of(request.endpoints), _permission(config)
        return service.QueryAssignmentResponse(status=OK, assignments=[
            definition.Assignment(message_queue=definition.MessageQueue(
                topic=request.topic, id=queue_id, permission=permission, broker=broker))
            for queue_id in (range(config.read_queue_nums) if fifo else (ALL_QUEUES,))])

    def _topic(self, topic: Any) -> TopicConfig:
        name = check_topic(topic)
        config = self._topics.select(name)
        if config is None:
            raise GrpcError(Code.TOPIC_NOT_FOUND, f"No topic route info in name server for the topic: {name}")
        return config

    def _broker_of(self, endpoints: Any) -> Any:
        """Return the broker with the endpoints by which the client reaches it, which need not be its own address."""
        if not endpoints.addresses:
            host, port = self._address()
            scheme = _scheme(host)
            endpoints = definition.Endpoints(
                scheme=scheme, addresses=[definition.Address(host=host, port=port)])
        return definition.Broker(name=self._config.broker_name, id=0, endpoints=endpoints)


def _scheme(host: str) -> Any:
    """Return the kind of a host: an address of IPv4 or IPv6, or a name."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return definition.AddressScheme.DOMAIN_NAME
    return definition.AddressScheme.IPv4 if version == 4 else definition.AddressScheme.IPv6


def _permission(config: TopicConfig) -> Any:
    if config.readable and config.writable:
        return _Permission.READ_WRITE
    return _Permission.READ if config.readable else _Permission.WRITE if config.writable else _Permission.NONE


def _permissions(config: TopicConfig) -> list[Any]:
    """Return what may be done with each queue: those for one purpose come first, as in RocketMQ."""
    reads = config.read_queue_nums if config.readable else 0
    writes = config.write_queue_nums if config.writable else 0
    if not (config.readable or config.writable):
        return [_Permission.NONE] * max(1, config.read_queue_nums, config.write_queue_nums)
    both = min(reads, writes)
    return [
        *[_Permission.READ] * (reads - both), *[_Permission.WRITE] * (writes - both),
        *[_Permission.READ_WRITE] * both]


def _accepted(config: TopicConfig) -> tuple[Any, ...]:
    name = config.attributes.get("message.type", "NORMAL")
    if name == "MIXED":
        return _MIXED
    return (_Types.Value(name),) if name in _Types.keys() else (_Types.MESSAGE_TYPE_UNSPECIFIED,)  # noqa: SIM118
