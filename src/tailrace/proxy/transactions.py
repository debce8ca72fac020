"""EndTransaction, and where half messages are."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, final

from tailrace.broker.messages.end_transaction import TransactionEnds
from tailrace.errors import RefusalError, UnknownTopicError
from tailrace.formats.commitlog import SysFlag
from tailrace.formats.names import HALF_TOPIC, REAL_TOPIC
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.message_headers import EndTransactionRequestHeader
from tailrace.node.message_store import MessageStore
from tailrace.proxy import limits
from tailrace.proxy.caller import Caller
from tailrace.proxy.clients import Clients, ServiceCall
from tailrace.proxy.protocol import OK, Code, GrpcError, definition, of_refusal, service
from tailrace.proxy.validation import check_topic
from tailrace.requests.durable_answers import refuse_undurable
from tailrace.requests.executors import Executors

__all__ = ["EndTransactionActivity", "HalfPlaces"]

_Resolution = definition.TransactionResolution
_ENDS: Final = {
    _Resolution.COMMIT: SysFlag.TRANSACTION_COMMIT, _Resolution.ROLLBACK: SysFlag.TRANSACTION_ROLLBACK}
COPIES_MAX: Final = 64


class _Place(NamedTuple):
    queue_offset: int
    phy_offset: int


@final
class HalfPlaces:
    """Places of half messages by topic and transaction id, the latest ones; the others are in the index."""

    def __init__(self, store: MessageStore, executors: Executors) -> None:
        self._store, self._executors = store, executors
        self._places: dict[tuple[str, str], _Place] = {}

    def put(self, topic: str, transaction_id: str, queue_offset: int, phy_offset: int) -> None:
        """Note where a half message is, unless its id is long: `find` finds it in the index as well."""
        if len(transaction_id) > limits.MAX_TRANSACTION_ID:
            return
        self.drop(topic, transaction_id)  # the new place is the latest one
        self._places[topic, transaction_id] = _Place(queue_offset, phy_offset)
        if len(self._places) > limits.MAX_TRANSACTIONS:
            del self._places[next(iter(self._places))]

    async def find(self, topic: str, transaction_id: str) -> _Place | None:
        """Return where a half message is; None if it does not exist. Raises GrpcError if too many look-ups wait."""
        place = self._places.get((topic, transaction_id))
        if place is not None or not self._store.config.message_index_enable:
            return place
        try:
            return await self._executors.look_ups.run(self._look_up, topic, transaction_id)
        except RefusalError as error:
            raise of_refusal(error) from None

    def drop(self, topic: str, transaction_id: str) -> None:
        """Forget a half message that is settled."""
        self._places.pop((topic, transaction_id), None)

    def _look_up(self, topic: str, transaction_id: str) -> _Place | None:
        try:
            halves = self._store.query_message(HALF_TOPIC, transaction_id, COPIES_MAX)
        except UnknownTopicError:  # no half message was ever sent
            return None
        found = [
            half for half in halves if half.unique_key == transaction_id and half.properties.get(REAL_TOPIC) == topic]
        latest = max(found, key=lambda half: half.queue_offset, default=None)
        return None if latest is None else _Place(latest.queue_offset, latest.phy_offset)


@final
class EndTransactionActivity:
    """Commits and rolls back."""

    def __init__(self, ends: TransactionEnds, clients: Clients, places: HalfPlaces) -> None:
        self._ends, self._clients, self._places = ends, clients, places

    async def end(self, request: Any, caller: Caller) -> Any:
        """Settle a half message; an unknown resolution leaves it pending."""
        topic, transaction_id = check_topic(request.topic), request.transaction_id
        if not transaction_id.strip():
            raise GrpcError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        place = await self._places.find(topic, transaction_id)
        if place is None:
            raise GrpcError(
                Code.INTERNAL_SERVER_ERROR,
                f"cannot found transaction data: there is no half message {transaction_id[:100]} of topic {topic}")
        commit_or_rollback = _ENDS.get(request.resolution)
        if commit_or_rollback is None:
            return service.EndTransactionResponse(status=OK)
        header = EndTransactionRequestHeader(
            topic, place.queue_offset, place.phy_offset, commit_or_rollback, request.message_id, topic,
            from_transaction_check=request.source == definition.TransactionSource.SOURCE_SERVER_CHECK,
            transaction_id=transaction_id)
        ends, call = self._ends, ServiceCall(self._clients, caller, RequestCode.END_TRANSACTION, header)
        try:
            until = await call.result(ends.end(header, call))
            if until and ends.durable is not None:
                refuse_undurable(await ends.durable.status(until))
        except RefusalError as error:
            raise of_refusal(error) from None
        finally:
            call.close()
        self._places.drop(topic, transaction_id)
        return service.EndTransactionResponse(status=OK)
