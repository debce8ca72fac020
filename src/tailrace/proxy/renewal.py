"""Receipts of push consumers, which the endpoint renews while the client works (DefaultReceiptHandleManager)."""

from __future__ import annotations

import asyncio
from typing import final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.supervision import caught, supervised
from tailrace.logs import get_logger
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.proxy import limits
from tailrace.proxy.clients import Client, Clients, Renewed
from tailrace.proxy.popped import PoppedMessages
from tailrace.proxy.protocol import GrpcError
from tailrace.proxy.receipts import ReceiptHandle
from tailrace.proxy.settings import retry_delay_ms

__all__ = ["Renewals"]

_log = get_logger(__name__)
TOGETHER = 200
"""Receipts that are renewed together, before others have their turn."""


@final
class Renewals:
    """Renews receipts of clients whose Telemetry stream is open, or that have not opened one yet."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, groups: SubscriptionGroupManager, clients: Clients,
        popped: PoppedMessages,
    ) -> None:
        self._loop, self._clock, self._groups, self._clients = loop, clock, groups, clients
        self._popped = popped
        self._task: asyncio.Task[None] | None = None
        self._giving: set[asyncio.Task[None]] = set()
        clients.on_forget.append(self._forgotten)

    def start(self) -> None:
        """Begin."""
        self._task = self._loop.create_task(supervised("Renewals", self._step, limits.RENEW_PERIOD_S))

    async def stop(self) -> None:
        """End; messages that are worked on are redelivered soon."""
        if self._task is not None:
            self._task.cancel()
        for client in self._clients.all():
            await self.give_back(client)

    def add(
        self, client: Client, group: str, topic: str, message_id: str, handle: ReceiptHandle, reconsume_times: int,
        lite_topic: str = "",
    ) -> None:
        """Renew the receipt of a message that a client has received, until `take`."""
        if len(client.renewed) < limits.MAX_RENEWED:
            client.renewed[_key(group, message_id, handle)] = Renewed(
                handle, topic, reconsume_times, self._clock.now_ms(), lite_topic)

    @staticmethod
    async def take(client: Client | None, group: str, message_id: str, handle: ReceiptHandle) -> ReceiptHandle:
        """Renew a receipt no more; return the latest one of the message, or ``handle``."""
        found = None if client is None else client.renewed.pop(_key(group, message_id, handle), None)
        return handle if found is None else await _latest(found)

    async def give_back(self, client: Client) -> None:
        """Have all messages that a client works on delivered again soon."""
        renewed, client.renewed = client.renewed, {}
        for key, one in renewed.items():
            try:
                handle = await _latest(one)
                await self._popped.change(
                    str(key[0]), one.topic, handle, limits.NACK_INVISIBLE_TIME_MS, one.lite_topic)
            except Exception as error:  # noqa: BLE001 - the other messages are given back
                events.MESSAGE_NOT_GIVEN_BACK.log(_log, group=key[0], topic=one.topic, reason=repr(error))

    def _forgotten(self, client: Client) -> None:
        """Give back what a client worked on that has vanished."""
        if client.renewed:
            task = self._loop.create_task(self.give_back(client))
            self._giving.add(task)
            task.add_done_callback(self._giving.discard)

    async def _step(self) -> None:
        for client in self._clients.all():
            if client.send is not None or not client.has_stream:
                with caught("Renewals"):
                    await self._renew_all(client)

    async def _renew_all(self, client: Client) -> None:
        now = self._clock.now_ms()
        due = [
            key for key, one in client.renewed.items()
            if one.handle.receipt.pop_time + one.handle.receipt.invisible_time - now < limits.RENEW_AHEAD_MS]
        for first in range(0, len(due), TOGETHER):
            await asyncio.gather(*(self._renew(client, key, now) for key in due[first : first + TOGETHER]))

    async def _renew(self, client: Client, key: tuple[object, ...], now: int) -> None:
        one = client.renewed.get(key)
        if one is None:
            return
        one.renewing = self._loop.create_future()
        try:
            await self._change(client, key, one, now)
        finally:
            one.renewing.set_result(None)
            one.renewing = None

    async def _change(self, client: Client, key: tuple[object, ...], one: Renewed, now: int) -> None:
        group, ms = str(key[0]), limits.DEFAULT_INVISIBLE_TIME_MS
        last = now - one.since_ms >= limits.RENEW_MAX_TIME_MS
        if last:
            config = self._groups.select(group)
            if config is None:
                del client.renewed[key]
                return
            ms = retry_delay_ms(config, one.reconsume_times)
        before = one.handle
        try:
            made = await self._popped.change(group, one.topic, before, ms, one.lite_topic)
        except Exception as error:  # noqa: BLE001 - the receipts of other messages are renewed
            one.failures += 1
            last = one.failures > limits.RENEW_RETRY_TIMES or isinstance(error, GrpcError)
            events.RECEIPT_NOT_RENEWED.log(
                _log, group=group, topic=one.topic, queue=before.receipt.queue_id, offset=before.receipt.queue_offset,
                reason=error)
        else:
            one.handle, one.failures = made, 0
            one.times += 1
        if last:
            client.renewed.pop(key, None)


async def _latest(one: Renewed) -> ReceiptHandle:
    """Return the handle of a message, after a renewal that is under way: that ends the handle before."""
    if one.renewing is not None:
        await asyncio.shield(one.renewing)
    return one.handle


def _key(group: str, message_id: str, handle: ReceiptHandle) -> tuple[object, ...]:
    receipt = handle.receipt
    return group, message_id, receipt.flag, receipt.queue_id, receipt.queue_offset
