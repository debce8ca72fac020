"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

from typing import Any, final

from tailrace.proxy import limits
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients
from tailrace.proxy.popped import PoppedMessages, Sync, settled
from tailrace.proxy.protocol import OK, Code, GrpcError, millis, overall, service, status
from tailrace.proxy.receipts import ReceiptHandle
from tailrace.proxy.renewal import Renewals
from tailrace.proxy.validation import check_group, check_invisible_time, check_topic

__all__ = ["AckActivity"]


@final
class AckActivity:
    """Settles received messages by their receipt handles."""

    def __init__(self, clients: Clients, popped: PoppedMessages, renewals: Renewals) -> None:
        self._clients = clients
        self._popped = popped
        self._renewals = renewals

    async def ack(self, request: Any, caller: Caller) -> Any:
        """Acknowledge messages; each has a status of its own."""
        topic, group = check_topic(request.topic), check_group(request.group)
        entries = request.entries
        if len(entries) > limits.MAX_ACK_ENTRIES:
            raise GrpcError(
                Code.BAD_REQUEST, f"entries has {len(entries)} entries, over the limit of {limits.MAX_ACK_ENTRIES}")
        begun = [await self._begin(caller, group, topic, entry) for entry in entries]
        results = [await self._result(entry, sync) for entry, sync in zip(entries, begun, strict=True)]
        return service.AckMessageResponse(
            status=overall({result.status.code for result in results}, "ack message result is empty"),
            entries=results)

    async def _begin(self, caller: Caller, group: str, topic: str, entry: Any) -> Sync | GrpcError | None:
        try:
            handle = await self._latest(caller, group, entry.message_id, entry.receipt_handle)
            return self._popped.begin_ack(group, topic, handle, entry.lite_topic)
        except GrpcError as error:
            return error

    async def _result(self, entry: Any, sync: Sync | GrpcError | None) -> Any:
        found = OK
        try:
            if isinstance(sync, GrpcError):
                raise sync
            await settled(sync)
        except GrpcError as error:
            found = status(error.code, error.message)
        return service.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=found)

    async def change(self, request: Any, caller: Caller) -> Any:
        """Have a message delivered again after another time; the response has its new handle."""
        topic, group = check_topic(request.topic), check_group(request.group)
        ms = millis(request.invisible_duration)
        check_invisible_time(ms)
        handle = await self._latest(caller, group, request.message_id, request.receipt_handle)
        made = await self._popped.change(group, topic, handle, ms, request.lite_topic, suspend=request.suspend)
        return service.ChangeInvisibleDurationResponse(status=OK, receipt_handle=made.encode())

    async def forward(self, request: Any, caller: Caller) -> Any:
        """Make a message a dead letter."""
        topic, group = check_topic(request.topic), check_group(request.group)
        handle = await self._latest(caller, group, request.message_id, request.receipt_handle)
        await self._popped.to_dead_letters(caller, group, topic, request.message_id, handle, request.lite_topic)
        return service.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def _latest(self, caller: Caller, group: str, message_id: str, text: str) -> ReceiptHandle:
        handle = self._popped.handle(text)
        return await self._renewals.take(self._clients.find(caller.client_id), group, message_id, handle)
