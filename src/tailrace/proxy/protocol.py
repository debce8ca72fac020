"""Messages of the protocol, and statuses. The classes come from the package ``rocketmq-python-client``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rocketmq.grpc_protocol import definition_pb2 as definition
from rocketmq.grpc_protocol import service_pb2 as service

from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode

__all__ = [
    "CODE_NAMES", "OK", "Code", "Duration", "GrpcError", "Timestamp", "definition", "duration", "millis", "name_of",
    "of_refusal", "overall", "resource", "service", "status", "timestamp",
]

Code: Final[Any] = SimpleNamespace(**dict(definition.Code.items()))
"""Status codes by name. The enum of the package is slower, because it searches for a name."""
CODE_NAMES: Final[dict[int, str]] = {number: name for name, number in definition.Code.items()}
MESSAGE_MAX: Final = 2_000
"""Most characters in the message of a status, because it may repeat a text that a client sent."""
_CODES: Final = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,  # it was deleted while the request was served
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
"""Status codes of answers of the broker, by their code; INTERNAL_SERVER_ERROR for any other one (ResponseBuilder)."""


class GrpcError(Exception):
    """A request that is answered with a status that is not OK."""

    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(f"{CODE_NAMES[code]}: {message}")


def status(code: int, message: str | None = None) -> Any:
    """Return a Status; without a message it gets the name of the code."""
    return definition.Status(code=code, message=(message or CODE_NAMES[code])[:MESSAGE_MAX])


_OK: Final = Code.OK
OK: Final = status(_OK)
"""One object is enough, because a message copies it when it is set as a field."""


def overall(codes: set[int], empty: str) -> Any:
    """Return the status of a response whose entries have these codes; ``empty`` is its message without entries."""
    if not codes:
        return status(Code.INTERNAL_SERVER_ERROR, empty)
    if len(codes) > 1:
        return status(Code.MULTIPLE_RESULTS)
    code = codes.pop()
    return OK if code == _OK else status(code)


def of_refusal(answer: RemotingCommand | RefusalError) -> GrpcError:
    """Return the error for an answer with which the broker refuses a request."""
    return GrpcError(_CODES.get(ResponseCode(answer.code) if answer.code in _KNOWN else ResponseCode.SYSTEM_ERROR,
                                Code.INTERNAL_SERVER_ERROR), answer.remark or str(answer.code))


_KNOWN: Final = frozenset(map(int, ResponseCode))


def name_of(of: Any) -> str:
    """Return the name of a topic or group in the broker: with its namespace, as clients of 4.x write it."""
    return f"{of.resource_namespace}%{of.name}" if of.resource_namespace else str(of.name)


def resource(name: str) -> Any:
    """Return a topic or group by its name in the broker."""
    namespace, found, rest = name.partition("%")
    if found and namespace:
        return definition.Resource(resource_namespace=namespace, name=rest)
    return definition.Resource(name=name)


def millis(of: Any) -> int:
    """Return a Duration or Timestamp in ms, rounded down."""
    return int(of.seconds) * 1000 + int(of.nanos) // 1_000_000


def duration(ms: int) -> Any:
    """Return ms as a Duration."""
    return Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def timestamp(ms: int) -> Any:
    """Return ms since 1970 as a Timestamp."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
