"""One record for each request of administration: who did what, from where, and with which result.

The table of requests says which requests are administration (`Request.administers`); none of their processors knows of
this module. Each of them leaves an event when it is answered, and with ``serve --audit-log`` a line in that file. The
file also gets the requests that access control denies, as often as the log, who opens the console, and the messages
that a user sends from there. A record has names, and never a password, a signature or the value of a secret setting.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol, final

from tailrace import events
from tailrace.auth.accesses import Accesses
from tailrace.auth.model import acl_of
from tailrace.auth_settings import AuthConfig
from tailrace.broker.core.settings import properties_in
from tailrace.config import BrokerConfig, NameServerConfig, StoreConfig, option_name
from tailrace.env.append_file import AppendFile
from tailrace.env.clock import Clock
from tailrace.errors import ConfigError, RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode, sender_of
from tailrace.formats.requests.table import REQUESTS
from tailrace.logs import get_logger
from tailrace.remoting import Channel, RemotingServer
from tailrace.remoting.server import Processor

__all__ = ["Audit", "AuditLog", "Lines"]

_log = get_logger(__name__)

LOG_IN_PERIOD_NS: Final = 15 * 60 * 1_000_000_000
"""A browser sends user and password with each request. A pause of this length makes a request a new log-in."""
REPEAT_NS: Final = 3600 * 1_000_000_000
"""The same registration of a broker, which comes every 30 s, leaves one record in this time."""
REMEMBERED_MAX: Final = 10_000
NAMES_MAX: Final = 50
"""Number of resources, settings or entries that a record names."""
TEXT_MAX: Final = 200
REGULAR: Final = frozenset({RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT})
SECRET_FIELDS: Final = frozenset({"value"})
"""Fields that are left out: the value of a KV config may be anything."""


@final
class Audit:
    """Records administration. ``file`` is None without ``--audit-log``. Used in the thread of the event loop."""

    def __init__(self, clock: Clock, cluster: str, file: AuditLog | None = None) -> None:
        self._clock = clock
        self._accesses = Accesses(cluster)
        self.file = file
        self._serving = False
        self._seen: dict[tuple[object, ...], int] = {}

    def watch(self, server: RemotingServer, via: str = "") -> None:
        """Record the requests of administration that a server answers. Call it after processors are registered.

        ``via`` names what sends them, if it is not a client.
        """
        for code, processor in server.processors.items():
            row = REQUESTS.get(code)  # type: ignore[call-overload]  # a code is a number
            if row is not None and row.administers:
                server.processors[code] = self._watched(processor, via)
                server.reported[code] = partial(self._answered, via)

    def _watched(self, processor: Processor, via: str) -> Processor:
        def serve(channel: Channel, request: RemotingCommand) -> RemotingCommand | bytes | None:
            self._serving = True
            try:
                answer = processor(channel, request)
            except Exception as error:
                refusal = error if isinstance(error, RefusalError) else None
                self._record(
                    channel, request, refusal.code if refusal else ResponseCode.SYSTEM_ERROR,
                    refusal.remark if refusal else str(error), via)
                raise
            finally:
                self._serving = False
            if isinstance(answer, RemotingCommand):
                self._record(channel, request, answer.code, answer.remark or "", via)
            return answer

        return serve

    def _answered(self, via: str, channel: Channel, request: RemotingCommand, answer: RemotingCommand) -> None:
        self._record(channel, request, answer.code, answer.remark or "", via)

    def _record(self, channel: Channel, request: RemotingCommand, code: int, remark: str, via: str) -> None:
        name, user = RequestCode(request.code).name, sender_of(request)
        result = "ok" if code == ResponseCode.SUCCESS else (
            "refused" if code == ResponseCode.NO_PERMISSION else "failed")
        resources, details = self._resources(request), _details(request)
        if request.code in REGULAR and self._is_known(
                (request.code, user, channel.peer_ip, str(details), code), REPEAT_NS):
            return
        events.ADMINISTRATION.log(
            _log, user=repr(user), address=channel.peer, code=request.code, name=name,
            resource=repr(",".join(resources)),
            result=result)
        if self.file is not None:
            self.file.write({
                "time": self._time(), "event": "administration", "user": user, "address": channel.peer,
                "code": request.code, "name": name, "resource": resources, "details": details, "result": result,
                "answer": code, **({"remark": remark[:TEXT_MAX]} if remark and result != "ok" else {}),
                "request": request.opaque, **({"via": via} if via else {})})

    def sent(
        self, user: str, address: str, name: str, resources: list[str], details: Mapping[str, Any], result: str
    ) -> None:
        """Record messages that a user has sent from the console: the action ``name``, and how it ended."""
        resources = _first(resources)
        events.MESSAGES_SENT_FROM_THE_CONSOLE.log(
            _log, user=repr(user), address=address, name=name, resource=repr(",".join(resources)), result=result)
        if self.file is not None:
            self.file.write({
                "time": self._time(), "event": "console", "user": user, "address": address, "name": name,
                "resource": resources, "details": details, "result": result})

    def denied(self, **fields: Any) -> None:
        """Record a request that access control has denied, unless it is recorded as administration."""
        if self.file is not None and not self._serving:
            self.file.write({"time": self._time(), "event": "denied", **fields, "result": "refused"})

    def logged_in(self, user: str, address: str, call: str) -> None:
        """Record that a user has proven its password, unless it did so a short time ago from the same address."""
        if self.file is not None and not self._is_known((user, address, call), LOG_IN_PERIOD_NS):
            self.file.write({
                "time": self._time(), "event": "log-in", "user": user, "address": address, "name": call,
                "result": "ok"})

    def _time(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat("T", "milliseconds")

    def _is_known(self, key: tuple[object, ...], period_ns: int) -> bool:
        """Return whether this was recorded in the period before; log-ins extend it."""
        now, last = self._clock.monotonic_ns(), self._seen.get(key)
        known = last is not None and now - last < period_ns
        if not known and len(self._seen) >= REMEMBERED_MAX:
            self._seen.clear()
        if not known or period_ns == LOG_IN_PERIOD_NS:
            self._seen[key] = now
        return known

    def _resources(self, request: RemotingCommand) -> list[str]:
        try:
            return _first([access.key for access in self._accesses.of(request)])
        except ConfigError:
            return []


def _first(names: list[str]) -> list[str]:
    more = [f"and {len(names) - NAMES_MAX} more"] if len(names) > NAMES_MAX else []
    return [name[:TEXT_MAX] for name in names[:NAMES_MAX]] + more


def _details(request: RemotingCommand) -> dict[str, Any]:
    """Return what a request says beyond its resources, without secrets; empty for a body that cannot be read."""
    header = REQUESTS[RequestCode(request.code)].header
    names = () if header is None else header.__struct_encode_fields__
    found: dict[str, Any] = {
        name: request.ext[name][:TEXT_MAX] for name in names if name not in SECRET_FIELDS and request.ext.get(name)}
    read = _BODIES.get(request.code)
    if read is not None:
        try:
            found |= read(request)
        except (ValueError, TypeError, AttributeError, ConfigError, RefusalError):
            found["body"] = "cannot be read"
    return found


def _user(request: RemotingCommand) -> dict[str, Any]:
    value = fastjson.loads_bounded(request.body, 1_000, fastjson.BOUNDED_MAX)
    found = {name: str(value[name])[:TEXT_MAX] for name in ("userType", "userStatus") if value.get(name)}
    return {**found, "password": "is set"} if value.get("password") else found


def _entries(request: RemotingCommand) -> dict[str, Any]:
    value = fastjson.loads_bounded(request.body, 100_000, fastjson.BOUNDED_MAX)
    acl = acl_of(value, request.ext.get("subject", ""))
    return {"subject": acl.subject, **{
        policy: _first([str(entry) for entry in entries])
        for policy, entries in (("custom", acl.custom), ("default", acl.default)) if entries}}


def _settings(request: RemotingCommand) -> dict[str, Any]:
    values = properties_in(request.body)
    return {"settings": {
        name[:TEXT_MAX]: value[:TEXT_MAX] if name in _SHOWN else "not shown"
        for name, value in itertools.islice(values.items(), NAMES_MAX)}}


_SHOWN: Final = frozenset(
    option_name(f) for config in (BrokerConfig, StoreConfig, NameServerConfig, AuthConfig)
    for f in dataclasses.fields(config) if not f.metadata["secret"])
"""Settings whose values are no secrets. An unknown name may be a setting with a mistake."""
_BODIES: Final[Mapping[int, Callable[[RemotingCommand], dict[str, Any]]]] = {
    RequestCode.AUTH_CREATE_USER: _user, RequestCode.AUTH_UPDATE_USER: _user,
    RequestCode.AUTH_CREATE_ACL: _entries, RequestCode.AUTH_UPDATE_ACL: _entries,
    RequestCode.UPDATE_BROKER_CONFIG: _settings, RequestCode.UPDATE_NAMESRV_CONFIG: _settings,
}
"""What is read of bodies that name more than resources."""


WAITING_MAX: Final = 10_000
LINE_MAX: Final = 16 << 10
"""Bytes of a line; the details of a longer one are left out."""


class Lines(Protocol):
    """An open file of lines."""

    def is_current(self) -> bool:
        """Return whether its path still leads to the file."""
        ...

    def append(self, data: bytes) -> None:
        """Append bytes, or raise OSError."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@final
class AuditLog:
    """Appends lines to a file. Any thread may call. Raises ConfigError if the file cannot be opened."""

    def __init__(self, path: str, open_file: Callable[[str], Lines] = AppendFile) -> None:
        self.path = path
        self._open = open_file
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._scheduled = self._closed = False
        self._failing = ""
        self.lost = 0
        """Number of lines that were dropped because too many waited."""
        try:
            self._file: Lines | None = open_file(path)
        except OSError as error:
            raise ConfigError(f"auditLog={path} cannot be opened: {error.strerror or error}") from None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="AuditLog")

    @staticmethod
    def check(path: str) -> None:
        """Raise ConfigError if the file cannot be opened; a missing one is created."""
        AuditLog(path).close()

    @property
    def waiting(self) -> int:
        """Number of lines that are not written yet."""
        return len(self._waiting)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line soon."""
        data = fastjson.dumps(line)
        if len(data) > LINE_MAX:
            data = fastjson.dumps({**line, "details": "left out, because they are too long"})[:LINE_MAX]
        with self._lock:
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(data + b"\n")
        self.flush()

    def flush(self) -> None:
        """Have the lines written that wait; called each second, so that a failed write is tried again."""
        with self._lock:
            if self._scheduled or self._closed or not self._waiting:
                return
            self._scheduled = True
        self._executor.submit(self._write)

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        with self._lock:
            self._closed = True
        self._executor.shutdown()
        self._write()
        if self._file is not None:
            self._file.close()
        if self._waiting:
            events.AUDIT_LINES_LOST.log(_log, file=self.path, lines=len(self._waiting))

    def _write(self) -> None:
        with self._lock:
            self._scheduled = False
        try:
            while self._waiting:
                lines = list(self._waiting)
                self._current().append(b"".join(lines))
                with self._lock:  # others may have been dropped from the left in the meantime
                    while lines and self._waiting:
                        if self._waiting[0] is lines[0]:
                            self._waiting.popleft()
                        lines.pop(0)
        except OSError as error:
            if not self._failing:
                events.AUDIT_LOG_CANNOT_BE_WRITTEN.log(_log, file=self.path, cause=error, lost=self.lost)
            self._failing = str(error)
            return
        if self._failing:
            self._failing = ""
            events.AUDIT_LOG_IS_WRITTEN_AGAIN.log(_log, file=self.path, lost=self.lost)

    def _current(self) -> Lines:
        if self._file is not None and not self._file.is_current():
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = self._open(self.path)
        return self._file
