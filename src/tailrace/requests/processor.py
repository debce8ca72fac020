"""Which method of a class serves which request.

    class Groups(RequestProcessor):
        @answers(RequestCode.QUERY_TOPICS_BY_CONSUMER, in_thread=True)
        def topics_of_group(self, header: QueryTopicsByConsumerRequestHeader) -> Content:
            ...

`answers` is for a request that is answered in its call: its method gets the header that the table of requests declares
for the code, and returns what is in the answer. `serves` is for any other request: its method gets the connection and
the request, and returns the answer, or None if it comes later. Both refuse a request with RefusalError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.custom_header import CustomHeader
from tailrace.formats.requests.table import REQUESTS
from tailrace.node.message_store import MessageStore
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.reply import Serve
from tailrace.requests.worker import RequestWorker

__all__ = ["Content", "RequestProcessor", "answers", "serves"]

Content = dict[str, Any] | CustomHeader | bytes | str | None
"""What is in an answer of success: an object as JSON, fields, a body, or the text of a remark; None without any."""
_Method = TypeVar("_Method", bound=Callable[..., Any])


class _Served(NamedTuple):
    codes: tuple[RequestCode, ...]
    in_thread: bool
    writes: bool


class RequestProcessor:
    """Serves the requests that its methods name with `answers` and `serves`."""

    _worker: RequestWorker
    """Has the thread for methods with ``in_thread``; needed only if there are any."""
    _store: MessageStore
    """Refuses what methods with ``writes`` serve, if it is read-only; needed only if there are any."""

    def register(self, server: RemotingServer) -> None:
        """Have a server pass the requests to their methods."""
        for name, method in vars(type(self)).items():
            served: _Served | None = getattr(method, "served", None)
            if served is None:
                continue
            serve: Serve = getattr(self, name)
            if served.writes and self._store.read_only:
                serve = self._refuse
            server.register(self._worker.in_thread(serve) if served.in_thread else serve, *served.codes)

    def _refuse(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        raise RefusalError(ResponseCode.SYSTEM_ERROR, self._store.read_only)


def serves(
    *codes: RequestCode, in_thread: bool = False, writes: bool = False
) -> Callable[[_Method], _Method]:
    """Have a method serve requests with these codes, on the event loop or in the thread of the worker.

    With ``writes`` a broker with a read-only store refuses them.
    """

    def decorate(method: _Method) -> _Method:
        vars(method)["served"] = _Served(codes, in_thread, writes)
        return method

    return decorate


def answers(
    *codes: RequestCode, in_thread: bool = False
) -> Callable[[Callable[..., Content]], Callable[[Any, Channel, RemotingCommand], RemotingCommand]]:
    """Have a method return the content of the answers to requests with these codes, as `serves` does.

    It gets the header of the first code, or no argument if the request has no fields. In a thread an object is written
    in steps, so that the event loop can work in between.
    """
    header = REQUESTS[codes[0]].header

    def decorate(
        method: Callable[..., Content]
    ) -> Callable[[Any, Channel, RemotingCommand], RemotingCommand]:
        @functools.wraps(method)
        def serve(self: Any, channel: Channel, request: RemotingCommand) -> RemotingCommand:
            content = method(self) if header is None else method(self, request.read(header))
            if isinstance(content, dict):
                content = fastjson.dumps_large(content) if in_thread else fastjson.dumps(content)
            if isinstance(content, bytes):
                return request.answer(body=content)
            return request.answer(remark=content) if isinstance(content, str) else request.answer(ext=content)

        return serves(*codes, in_thread=in_thread)(serve)

    return decorate
