"""SyncLiteSubscription: the Lite topics of a consumer (ClientActivity, ClientProcessor)."""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.env.clock import Clock
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.proxy import limits
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients
from tailrace.proxy.protocol import OK, Code, GrpcError, definition, of_refusal, service
from tailrace.proxy.settings import check_bind_topic
from tailrace.proxy.validation import check_group, check_lite_topic, check_topic

__all__ = ["LiteSubscriptionActivity"]

_ACTIONS: Final = {number: name for name, number in definition.LiteSubscriptionAction.items()}
SECOND_NS: Final = 1_000_000_000


@final
class LiteSubscriptionActivity:
    """Checks subscriptions to Lite topics and passes them on to the broker."""

    def __init__(self, clock: Clock, groups: SubscriptionGroupManager, clients: Clients) -> None:
        self._clock, self._groups, self._clients = clock, groups, clients
        self._second = self._in_second = 0

    async def sync(self, request: Any, caller: Caller) -> Any:
        """Add, replace or end subscriptions."""
        topic, group = check_topic(request.topic), check_group(request.group)
        if request.action not in _ACTIONS:
            raise GrpcError(Code.BAD_REQUEST, f"unknown LiteSubscriptionAction: {request.action}")
        names, adds = list(dict.fromkeys(request.lite_topic_set)), _ACTIONS[request.action] == "PARTIAL_ADD"
        if adds:
            for name in names:
                check_lite_topic(name)
        quota = check_bind_topic(self._groups, group, topic).lite_client_quota
        if len(names) > quota + limits.LITE_QUOTA_BUFFER:
            raise GrpcError(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {quota}")
        entry: dict[str, Any] = {
            "action": _ACTIONS[request.action], "clientId": caller.client_id, "group": group, "topic": topic,
            "liteTopicSet": names, "version": request.version}
        if adds:
            self._check_rate(topic, group, caller)
            if (kind := request.offset_option.WhichOneof("offset_type")) is not None:
                value = getattr(request.offset_option, kind)
                entry["offsetOption"] = {"type": kind.upper(), "value": value}
        answer = await self._clients.call(
            caller, RequestCode.LITE_SUBSCRIPTION_CTL, CustomHeader(), fastjson.dumps({"subscriptionSet": [entry]}))
        if answer.code != ResponseCode.SUCCESS:
            raise of_refusal(answer)
        return service.SyncLiteSubscriptionResponse(status=OK)

    def _check_rate(self, topic: str, group: str, caller: Caller) -> None:
        second = self._clock.monotonic_ns() // SECOND_NS
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > limits.MAX_LITE_SYNC_RATE:
            raise GrpcError(
                Code.TOO_MANY_REQUESTS,
                f"Too many syncLiteSubscription requests, topic={topic}, group={group}, clientId={caller.client_id}")
