"""The entry of every call: who calls, which user has signed it, and may that user do what the call asks.

The rules are those of RocketMQ's proxy (DefaultAuthenticationContextBuilder, DefaultAuthorizationContextBuilder). The
requests of a call to the broker's processors go over connections that only this package has. They are not checked
again: a receipt names a retry topic that belongs to the endpoint's work, and not to the user's permissions.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, final

from tailrace.auth.accesses import TOPIC, Access, group_access, topic_access
from tailrace.auth.check import AccessControl
from tailrace.auth.model import User
from tailrace.errors import RefusalError
from tailrace.formats.requests.table import Action
from tailrace.proxy.caller import Caller, address_of, caller_of, metadata_of
from tailrace.proxy.clients import CONSUMERS, Client, Clients
from tailrace.proxy.protocol import Code, GrpcError, name_of, service
from tailrace.proxy.signature_dates import SignatureDates

__all__ = ["Entry", "Proof", "proof_of"]

SCHEME: Final = "MQv2-HMAC-SHA1"
INCORRECT: Final = "authentication header is incorrect."
_WHITE: Final = "".join(map(chr, range(0x21)))
"""What Java's trim removes."""


class Proof(NamedTuple):
    """What a call says about its user."""

    user: str = ""
    content: bytes = b""
    """What is signed: the value of ``x-mq-date-time``."""
    signature: bytes | None = None


def proof_of(metadata: dict[str, str]) -> Proof:
    """Return what the header ``authorization`` says; empty without one. Raises ValueError with RocketMQ's words."""
    header = metadata.get("authorization", "")
    if not header:
        return Proof()
    signed = metadata.get("x-mq-date-time", "")
    if not signed:
        raise ValueError("datetime is null.")
    scheme, found, rest = header.partition(" ")
    if not found or scheme != SCHEME:
        raise ValueError(INCORRECT)
    user, signature = "", None
    for item in rest.rstrip(",").split(","):
        name, found, value = item.strip(_WHITE).partition("=")
        if not found:
            raise ValueError("authentication keyValues length is incorrect, actual length=1.")
        if name == "Credential":
            user = value.partition("/")[0]
        elif name == "Signature":
            try:
                signature = binascii.unhexlify(value)
            except ValueError:
                raise ValueError("create authentication context error.") from None
    return Proof(user, signed.encode(), signature)


@final
class Entry:
    """Lets calls in. Without ``control`` there are no users, and every call may come in."""

    def __init__(self, control: AccessControl | None, clients: Clients, dates: SignatureDates) -> None:
        self._control = control
        self._clients = clients
        self._dates = dates

    @property
    def has_users(self) -> bool:
        """Whether calls need a user."""
        return self._control is not None

    def user(self, call: str, context: Any) -> User | None:
        """Return the user that has signed a call, from its metadata alone; None if calls need no user.

        ``call`` is the name of the call's request, for the log. Raises GrpcError (UNAUTHORIZED).
        """
        if self._control is None:
            return None
        return self._prove(self._control, metadata_of(context), address_of(context.peer())[0], call, None)

    def caller(
        self, request: Any, context: Any, begun_ms: int | None = None, user: User | None = None
    ) -> Caller:
        """Return the client of a call.

        ``begun_ms`` is the time at which a stream began: its metadata was signed then. Without it the call begins now.
        ``user`` is the result of `user` for the first request of a call; without it the signature is checked here.

        Raises GrpcError: UNAUTHORIZED if no user has signed the call, FORBIDDEN if the user may not do it.
        """
        metadata, peer = metadata_of(context), address_of(context.peer())
        control = self._control
        if control is None:
            return caller_of(metadata, peer)
        call, address = type(request).__name__, peer[0]
        user = user or self._prove(control, metadata, address, call, begun_ms)
        caller = caller_of(metadata, peer, user.name)._replace(proven=user)
        client = self._clients.find(caller.client_id)
        try:
            if self._clients.user_of(caller.client_id) not in {None, user.name}:
                # Or the user would get the commands of another one, with their messages.
                raise control.refusal(
                    address, call, "permission", user.name, f"client {caller.client_id} is one of another user")
            self._authorize(control, user, address, call, request, client)
        except RefusalError as error:
            raise GrpcError(Code.FORBIDDEN, error.remark) from None
        if client is not None:
            client.connection.channel.users[user.name] = user  # the user may have a new password
        return caller

    def _prove(
        self, control: AccessControl, metadata: dict[str, str], address: str, call: str, begun_ms: int | None
    ) -> User:
        try:
            try:
                proof = proof_of(metadata)
            except ValueError as error:
                raise control.refusal(address, call, "request", "", str(error)) from None
            user = control.prove(address, call, *proof)
            if late := self._dates.refusal(proof.content.decode(), begun_ms):
                raise control.refusal(address, call, "request", user.name, late)
        except RefusalError as error:
            raise GrpcError(Code.UNAUTHORIZED, error.remark) from None
        return user

    @staticmethod
    def _authorize(
        control: AccessControl, user: User, address: str, call: str, request: Any, client: Client | None
    ) -> None:
        if user.is_super:
            return
        try:
            accesses = list(_ACCESSES[type(request)](request, client))
        except ValueError as error:
            raise control.refusal(address, call, "request", user.name, str(error)) from None
        control.authorize(address, call, user, accesses)
        if _names_no_topic(request) and not control.permits_some(user.name, address, TOPIC, Action.PUB):
            # Or a user without any permission would have a place in the table of clients.
            raise control.refusal(
                address, call, "permission", user.name,
                f"User:{user.name} has no permission to send to any topic from {address}")


# --- what a call does to which topics and groups


def _named(of: Any, what: str) -> str:
    if not of.name.strip():
        raise ValueError(f"{what} is null.")
    return name_of(of)


def _pub(topic: Any) -> Access:
    return topic_access(_named(topic, "topic"), Action.PUB)


def _sub(topic: Any) -> Access:
    return topic_access(_named(topic, "topic"), Action.SUB)


def _group(group: Any) -> Access:
    return group_access(_named(group, "group"), Action.SUB)


def _send(request: Any, _: Client | None) -> Iterator[Access]:
    if not request.messages:
        raise ValueError("message is null.")
    yield _pub(request.messages[0].topic)  # the others are of the same one, or the call is refused


def _pub_topic(request: Any, _: Client | None) -> Iterator[Access]:
    yield _pub(request.topic)


def _group_and_topic(request: Any, _: Client | None) -> Iterator[Access]:
    yield _group(request.group)
    yield _sub(request.topic)


def _receive(request: Any, _: Client | None) -> Iterator[Access]:
    if not request.HasField("message_queue"):
        raise ValueError("messageQueue is null.")
    yield _group(request.group)
    yield _sub(request.message_queue.topic)


def _heartbeat(request: Any, client: Client | None) -> Iterator[Access]:
    if request.client_type in CONSUMERS or (client is not None and client.settings.HasField("subscription")):
        yield _group(request.group)


def _terminate(request: Any, _: Client | None) -> Iterator[Access]:
    if request.group.name.strip():
        yield _group(request.group)


def _route(request: Any, _: Client | None) -> Iterator[Access]:
    yield topic_access(_named(request.topic, "topic"), Action.PUB | Action.SUB)


def _telemetry(request: Any, _: Client | None) -> Iterator[Access]:
    if not request.HasField("settings"):
        return
    settings = request.settings
    for topic in settings.publishing.topics:
        yield _pub(topic)
    if settings.HasField("subscription"):
        yield _group(settings.subscription.group)
        for entry in settings.subscription.subscriptions:
            yield _sub(entry.topic)


def _names_no_topic(request: Any) -> bool:
    """Return whether a request has the settings of a producer without topics. Clients may name their topics later."""
    return isinstance(request, service.TelemetryCommand) and request.settings.HasField("publishing") and (
        not request.settings.publishing.topics)


_ACCESSES: Final[dict[type, Callable[[Any, Client | None], Iterator[Access]]]] = {
    service.SendMessageRequest: _send,
    service.RecallMessageRequest: _pub_topic,
    service.EndTransactionRequest: _pub_topic,
    service.HeartbeatRequest: _heartbeat,
    service.ReceiveMessageRequest: _receive,
    service.AckMessageRequest: _group_and_topic,
    service.ForwardMessageToDeadLetterQueueRequest: _group_and_topic,
    service.ChangeInvisibleDurationRequest: _group_and_topic,  # the proxy checks the group only
    service.NotifyClientTerminationRequest: _terminate,
    service.QueryRouteRequest: _route,
    service.QueryAssignmentRequest: _group_and_topic,
    service.TelemetryCommand: _telemetry,
    service.SyncLiteSubscriptionRequest: _group_and_topic,  # the proxy checks nothing if it names no Lite topic
}
"""A call that is not here has no method."""
