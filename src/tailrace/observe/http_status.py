"""``serve --http``: a small HTTP server for ``/ready``, ``/metrics`` and the pages below ``/console/``.

The server answers as soon as the process runs, even while the store is opened. ``/ready`` returns 200 when
clients are served, even from a store that was opened read-only, which the text then says. Before that
``/ready`` returns 503 with the current state and, if the store reports it, the percentage of the recovery.
If no send can succeed in a store that was opened for writing, ``/ready`` returns 503 with the reason: the store refuses
writes, it finds no room for the next bytes of the log, or too many sends wait for the disk.

The server answers GET and HEAD, one request a connection, and closes a connection that sends no complete
request within 5 s. With ``serve --console-actions`` it also takes the forms of the pages below ``/console/actions/``,
see `tailrace.observe.http_forms`. If too many connections are open, the server closes the oldest one that waits for the
late answer to a wrong password, or else the oldest one that has not sent its request yet, so clients that guess or are
slow do not lock others out. Connections may use TLS, see `tailrace.remoting.acceptor`.

If clients of the broker need a user, a browser needs one as well (HTTP Basic), who must be allowed to Get the cluster.
A page shows what its user may see. ``/ready`` is for probes and needs no user. ``/metrics`` needs one with the setting
``metricsNeedsUser``, or the token of ``metricsTokenFile``.

``/ready`` is answered on the event loop and waits for no thread. Threads make the text of ``/metrics``, once for all
scrapers of a second, and the pages, see `tailrace.observe.http_turns`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, NamedTuple, Protocol, final

from tailrace import events
from tailrace.auth.accesses import CLUSTER, Access
from tailrace.auth.addresses import network_of
from tailrace.auth.check import AccessControl
from tailrace.auth.model import User
from tailrace.config import BrokerConfig
from tailrace.env.pauses import pause
from tailrace.errors import RefusalError
from tailrace.formats.requests.table import Action
from tailrace.logs import get_logger
from tailrace.observe.exposition import Exposition, MeasuredBroker, format_of
from tailrace.observe.http_forms import FormRefusedError, fields_of, foreign, read_form
from tailrace.observe.http_turns import PAGE_S, SHARED_S, Pace, PageTurns, SharedTexts
from tailrace.remoting.acceptor import Acceptor, IncomingConnection
from tailrace.remoting.addresses import address_text
from tailrace.remoting.limits import SLOW_HTTP, ServerLimits
from tailrace.remoting.server import one_address
from tailrace.requests.durable_answers import PENDING_LIMIT

__all__ = [
    "ACTIONS", "Actions", "Asked", "HttpAnswer", "HttpStatusServer", "May", "Pages", "RecoveryProgress",
    "unknown_progress",
]

_log = get_logger(__name__)

REQUEST_TIMEOUT_S: Final = 5.0
REQUEST_MAX: Final = 8192
CONNECTIONS_MAX: Final = 64
SCRAPERS_MAX: Final = 48
"""Requests for ``/metrics`` that may be open; the other connections are left to probes and pages."""
PART: Final = 64 * 1024
"""Bytes of an answer that are written at a time. The text of ``/metrics`` is the same bytes for all connections."""
BACKLOG: Final = 100
FAILED_LOG_IN_S: Final = 1.0
"""How long the answer to a wrong password waits, so that guessing takes long."""
TEXT: Final = "text/plain; charset=utf-8"
ACTIONS: Final = "/console/actions"


class HttpAnswer(NamedTuple):
    """The answer of a page."""

    status: HTTPStatus
    body: bytes
    content_type: str
    headers: Mapping[str, str]


May = Callable[[Access], bool]
"""Returns whether the user of a request may do something; called from any thread."""


def _everything(_: Access) -> bool:
    return True


class Pages(Protocol):
    """Pages below ``/console/``; called in a thread."""

    def __call__(self, target: str, state: str, may: May) -> HttpAnswer:
        """Return the answer to a request for ``target``, with what its user may see."""
        ...


class Asked(NamedTuple):
    """A request for a page of an action."""

    method: str
    """GET, HEAD or POST."""
    target: str
    form: Mapping[str, list[str]]
    """The fields of the form that was posted from a page of this server."""
    user: User
    """The user whose password came with the request; it may Get the cluster."""
    peer: tuple[str, int]
    """Host and port of the browser."""


class Actions(Protocol):
    """The page ``/console/actions`` and those below; called on the event loop."""

    async def __call__(self, asked: Asked) -> HttpAnswer:
        """Return the answer to a request. Raises RefusalError (SYSTEM_BUSY) if too much is done already."""
        ...


class RecoveryProgress(Protocol):
    """Returns how far the recovery of a store is; called from any thread."""

    def __call__(self) -> float | None:
        """Return the share that is done, from 0 to 1; None if it is unknown."""
        ...


def unknown_progress() -> float | None:
    """Return None: the progress of a store that does not report it."""
    return None


@final
class _HttpConnection:
    """A connection as `ServerLimits` sees it."""

    __slots__ = ("_writer", "counted", "last_active", "peer", "peer_ip", "place", "reader", "served")
    unauthenticated = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, now: float) -> None:
        self.reader, self._writer = reader, writer
        self.counted = 0
        self.last_active = now
        self.served = False
        host, port = (writer.get_extra_info("peername") or ("", 0))[:2]
        self.peer_ip, self.peer, self.place = str(host), address_text(host, port), (str(host), int(port))

    def abort(self) -> None:
        self._writer.transport.abort()

    def held_bytes(self) -> int:
        return 0  # at most REQUEST_MAX and one answer, which is not worth counting

    def wait_for_memory(self) -> None:
        """Do nothing: status requests are answered even when memory is short."""


@final
class HttpStatusServer:
    """Answers ``/ready`` and ``/metrics``. Call `serving` when clients are served."""

    def __init__(
        self, config: BrokerConfig, progress: RecoveryProgress = unknown_progress,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        limits: ServerLimits | None = None, pages: Pages | None = None, acceptor: Acceptor | None = None,
        metrics_token: str = "", shared_s: float = SHARED_S, page_s: float = PAGE_S,
    ) -> None:
        """``metrics_token`` is the one of ``metricsTokenFile``; see `tailrace.observe.http_turns` for the seconds.

        ``pages`` are those without a broker.
        """
        self._progress = progress
        self._pages = self._pages_without = pages
        self._access = Access(CLUSTER, config.broker_cluster_name, Action.GET)
        self._control: AccessControl | None = None
        self._actions: Actions | None = None
        self._loopback = False
        self._metrics_need_user, self._metrics_token = config.metrics_needs_user, metrics_token.encode()
        self._exposition = Exposition(config.broker_cluster_name, config.broker_name, pause)
        self._texts, self._turns = SharedTexts(self._metrics, shared_s), PageTurns(page_s)
        self._pace, self._scrapers = Pace(), 0
        self._exposition.executors = self._texts.executor, self._turns.executor
        self._acceptor = self._exposition.acceptor = acceptor or Acceptor(
            ServerLimits() if limits is None else limits)
        self._limits = self._acceptor.limits
        self._incoming: dict[IncomingConnection, None] = {}
        self._open: dict[_HttpConnection, None] = {}
        self._late: dict[_HttpConnection, asyncio.Future[None]] = {}
        self._state = "starting"
        self._timeout_s = request_timeout_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address. Raises OSError if that is not possible."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, one_address(found), port, backlog=self._limits.backlog(BACKLOG))
        taken = self._server.sockets[0].getsockname()
        self._loopback = ip_address(str(taken[0]).partition("%")[0]).is_loopback
        return str(taken[0]), int(taken[1])

    def serving(
        self, broker: MeasuredBroker, control: AccessControl | None = None, actions: Actions | None = None,
        pages: Pages | None = None,
    ) -> None:
        """Set the state to ready, and show ``broker`` under ``/metrics``, and its ``pages`` to users of ``control``.

        ``actions`` are those that users may take; None without ``serve --console-actions``.
        """
        assert actions is None or control is not None, "only users take actions"
        self._control = control
        self._actions, self._pages = actions, pages or self._pages
        self._exposition.broker = broker
        self._texts.forget()
        self._state = "ready"

    def stopping(self) -> None:
        """Set the state to stopping, which is not ready."""
        self._actions, self._pages = None, self._pages_without
        self._exposition.broker = None
        self._texts.forget()
        self._state = "stopping"

    async def stop(self) -> None:
        """Close the listener, then each connection after its answer, for which it has 1 s."""
        for executor in (self._texts.executor, self._turns.executor):
            executor.stop()
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in list(self._incoming):
            connection.abort()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _accept(self) -> asyncio.Protocol:
        if len(self._open) + len(self._incoming) >= CONNECTIONS_MAX:
            self._make_room(asyncio.get_running_loop().time())
        return self._acceptor.protocol(self._streams, self._incoming, self._timeout_s)

    def _make_room(self, now: float) -> bool:
        """Close a connection that may give way; return False without one.

        It is the oldest one that waits for the answer to a wrong password, or else the oldest one that has sent no byte
        yet or is in its TLS handshake.
        """
        if self._late:
            guesser = next(iter(self._late))
            del self._open[guesser]
            self._late.pop(guesser).set_result(None)
            self._limits.close(guesser, SLOW_HTTP, now)
        elif self._incoming:
            self._limits.close(next(iter(self._incoming)), SLOW_HTTP, now)
        else:
            return False
        return True

    def _streams(self) -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=REQUEST_MAX), self._accepted)

    async def _accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        loop = asyncio.get_running_loop()
        connection = _HttpConnection(reader, writer, loop.time())
        try:
            if not self._take(connection):
                return
            async with asyncio.timeout(self._timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
            connection.served, connection.last_active = True, loop.time()
            scraper = head.startswith((b"GET /metrics", b"HEAD /metrics"))
            if scraper and self._scrapers >= SCRAPERS_MAX:
                await self._write(writer, _busy(f"{self._scrapers} scrapers read already"))
                return
            self._scrapers += scraper
            try:
                await self._write(writer, await self._answer(head, connection))
            finally:
                self._scrapers -= scraper
        except asyncio.LimitOverrunError:
            writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"head too long\n"))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._open.pop(connection, None)
            self._limits.lost(connection)
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter, answer: bytes) -> None:
        """Write an answer in parts, a long one at the pace of all long ones. Raises TimeoutError if it is not read."""
        if writer.transport.is_closing():  # for a limit, or by the client; uvloop refuses the next call then
            return
        data = memoryview(answer)
        writer.transport.set_write_buffer_limits(0)  # a part is written when the client has taken the one before
        async with asyncio.timeout(self._timeout_s) as limit:
            for at in range(0, len(data), PART):
                part = data[at : at + PART]
                waited = await self._pace.wait(len(part)) if len(data) > PART else 0.0
                if waited and (when := limit.when()) is not None:
                    limit.reschedule(when + waited)
                writer.write(part)
                await writer.drain()

    def _take(self, connection: _HttpConnection) -> bool:
        """Make room for a connection: close one of the address that has the most."""
        self._open[connection] = None
        if not self._limits.opened(connection, connection.last_active):
            return False
        if len(self._open) + len(self._incoming) <= CONNECTIONS_MAX:
            return True
        if not self._make_room(connection.last_active):
            oldest = self._in_the_way(connection)
            del self._open[oldest]
            self._limits.close(oldest, SLOW_HTTP, connection.last_active)
        return True

    def _in_the_way(self, newcomer: _HttpConnection) -> _HttpConnection:
        """Return the oldest connection of the address that has the most; one without a request goes first."""
        of_address = Counter(network_of(c.peer_ip) for c in self._open)
        most = max(of_address.values())
        found = [c for c in self._open if of_address[network_of(c.peer_ip)] == most]
        return next((c for c in found if not c.served and c is not newcomer), found[0])

    async def _answer(self, head: bytes, connection: _HttpConnection) -> bytes:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, b"not an HTTP/1 request\n")
        method, target, _ = line
        path = target.split("?", 1)[0]
        page: Callable[[], bytes] | None = None
        if self._pages is not None and target in {"/", "/console"}:
            return _response(HTTPStatus.SEE_OTHER, b"see /console/\n", headers={"Location": "/console/"})
        if self._pages is not None and target.startswith("/console/"):
            if self._loopback and not _names_this_machine(head):
                return _response(HTTPStatus.FORBIDDEN, b"the console answers requests to a loopback address only\n")
            user = await self._viewer(head, connection)
            if isinstance(user, bytes):
                return user
            if user is not None and self._actions is not None and (path + "/").startswith(f"{ACTIONS}/"):
                return await self._act(self._actions, method, target, head, user, connection)
            page = partial(self._page, target, self._may(user, connection))
        if path == "/metrics" and (refused := await self._metrics_refused(head, connection)):
            return refused
        if page is None and path not in {"/ready", "/metrics"}:
            return _response(HTTPStatus.NOT_FOUND, b"known are /ready, /metrics and /console/\n")
        if method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", headers={"Allow": "GET, HEAD"})
        if page is not None:
            return await _made(method, target, self._turns.make(path.removeprefix("/console/").partition("/")[0], page))
        return await _made(method, target, self._status(path, head))

    async def _status(self, path: str, head: bytes) -> bytes:
        return self._ready() if path == "/ready" else await self._texts.get(format_of(_accepted(head)))

    async def _act(
        self, actions: Actions, method: str, target: str, head: bytes, user: User, connection: _HttpConnection,
    ) -> bytes:
        """Return the answer to a request of a user for a page of an action, or to its form."""
        form: Mapping[str, list[str]] = {}
        if method == "POST":
            async with asyncio.timeout(self._timeout_s):
                try:
                    form = await read_form(head, connection.reader)
                except FormRefusedError as error:
                    return _response(error.status, f"{error}\n".encode())
            assert self._control is not None
            if why := foreign(head):
                refused = self._control.refusal(connection.peer_ip, "console", "request", user.name, why)
                return _response(HTTPStatus.FORBIDDEN, f"{refused.remark}\n".encode())
        elif method not in {"GET", "HEAD"}:
            return _response(
                HTTPStatus.METHOD_NOT_ALLOWED, b"only GET, HEAD and POST\n", headers={"Allow": "GET, HEAD, POST"})
        asked = Asked(method, target, form, user, connection.place)

        async def take() -> bytes:
            async with asyncio.timeout(PAGE_S):
                return _response(*await actions(asked))

        return await _made(method, target, take())

    def _may(self, user: User | None, connection: _HttpConnection) -> May:
        if user is None or self._control is None:
            return _everything
        return partial(self._control.may, user.name, connection.peer_ip)

    async def _viewer(self, head: bytes, connection: _HttpConnection) -> User | bytes | None:
        """Return the user of a request for a page, None without users, or the answer to one that may see no page."""
        if self._control is None:
            return None
        name, password = _log_in(head)
        address = connection.peer_ip
        if not name:  # the first request of every browser, so it is neither logged nor counted as denied
            return _log_in_first("send its name and password")
        try:
            user = self._control.log_in(address, "console", name, password)
        except RefusalError as error:
            await self._wait_long(connection)
            return _log_in_first(error.remark)
        try:
            self._control.authorize(address, "console", user, [self._access])
        except RefusalError as error:
            return _response(HTTPStatus.FORBIDDEN, f"{error.remark}\n".encode())
        return user

    async def _metrics_refused(self, head: bytes, connection: _HttpConnection) -> bytes:
        """Return the answer to a scraper that lacks a user or the token; empty if it may read the metrics."""
        if not self._metrics_need_user and not self._metrics_token:
            return b""
        kind, _, given = (fields_of(head, "authorization") or [""])[0].strip().partition(" ")
        if self._metrics_token and kind.lower() == "bearer":
            if hmac.compare_digest(given.strip().encode("latin-1"), self._metrics_token):
                return b""
            await self._wait_long(connection)
        elif self._metrics_need_user:
            if self._control is None:
                return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"the broker does not know its users yet\n")
            user = await self._viewer(head, connection)
            return user if isinstance(user, bytes) else b""
        return _response(HTTPStatus.UNAUTHORIZED, b"/metrics needs the token of metricsTokenFile\n",
                         headers={"WWW-Authenticate": 'Bearer realm="Tailrace"'})

    async def _wait_long(self, connection: _HttpConnection) -> None:
        """Wait before the answer to a wrong password, so that guessing takes long; less if others need the room."""
        self._late[connection] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._late[connection],), timeout=FAILED_LOG_IN_S)
        finally:
            self._late.pop(connection, None)

    def _ready(self) -> bytes:
        if self._state == "ready":
            broker = self._exposition.broker
            read_only = broker.store.read_only if broker is not None else ""
            if broker is not None and not read_only and (why := _why_sends_fail(broker)):
                return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n".encode())
            text = f"ready, {read_only}" if read_only else "ready"
            return _response(HTTPStatus.OK, f"{text}\n".encode())
        text, done = self._state, self._done()
        if text == "starting" and done is not None:
            text = f"recovering {done * 100:.0f} %"
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{text}\n".encode())

    def _page(self, target: str, may: May) -> bytes:
        assert self._pages is not None
        return _response(*self._pages(target, self._state, may))

    def _metrics(self, content_type: str) -> bytes:
        self._exposition.progress = self._done()
        return _response(HTTPStatus.OK, self._exposition.text(content_type), content_type)

    def _done(self) -> float | None:
        done = self._progress()
        return None if done is None else min(1.0, max(0.0, done))


def _why_sends_fail(broker: MeasuredBroker) -> str:
    """Return why no send can succeed now; empty if one can."""
    store = broker.store
    if not store.is_writeable:
        return f"the store takes no writes: {store.not_writeable_reason}"
    if cause := store.refused_puts.failing:
        return f"sends fail: {cause}"
    if (waiting := broker.waiting_sends()) >= PENDING_LIMIT:
        return f"sends are refused: {waiting} wait for the disk already"
    return ""


def _accepted(head: bytes) -> str:
    """Return the values of all ``Accept`` fields of a request's head, separated by commas."""
    return ",".join(fields_of(head, "accept"))


def _log_in(head: bytes) -> tuple[str, str]:
    """Return user name and password of a request's head; two empty texts if there is no such field, or a broken one."""
    given = fields_of(head, "authorization")
    kind, _, text = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
    if kind.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password


def _log_in_first(why: str) -> bytes:
    return _response(
        HTTPStatus.UNAUTHORIZED, f"the console needs a user of the broker: {why}\n".encode(),
        headers={"WWW-Authenticate": 'Basic realm="Tailrace", charset="UTF-8"'})


def _busy(why: str) -> bytes:
    return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"the broker is busy: {why}\n".encode(),
                     headers={"Retry-After": "5"})


async def _made(method: str, target: str, making: Awaitable[bytes]) -> bytes:
    """Return the answer that ``making`` returns, or that to its error; for HEAD without the body."""
    try:
        answer = await making
    except (RefusalError, TimeoutError) as error:
        answer = _busy(str(error) or "the page takes too long")
    except Exception as error:  # noqa: BLE001 - the outermost step of a request: log, answer
        events.STATUS_REQUEST_FAILED.log(_log, target=target[:100], reason=repr(error))
        answer = _response(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}\n".encode())
    return answer[: answer.index(b"\r\n\r\n") + 4] if method == "HEAD" else answer


def _names_this_machine(head: bytes) -> bool:
    """Return whether the Host field of a request names a loopback host.

    Another name may belong to a foreign page that points its own name at this address to read the answers
    (DNS rebinding).
    """
    hosts = [value.strip() for value in fields_of(head, "host")]
    if len(hosts) != 1:
        return False
    host = hosts[0].rpartition(":")[0] if not hosts[0].endswith("]") and ":" in hosts[0] else hosts[0]
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _response(
    status: HTTPStatus, body: bytes, content_type: str = TEXT, headers: Mapping[str, str] | None = None,
) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}", "Connection: close",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + body
