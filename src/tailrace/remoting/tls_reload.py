"""Reload of certificates without a restart: the files are read every two seconds.

If their contents have changed, new handshakes use them; open connections are not affected. If the files cannot be
used, such as a new certificate without its new key, the old certificate stays in use. The same files tell when a
certificate, or a list of revoked ones, expires.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from tailrace import events
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.supervision import supervised
from tailrace.env.whole_files import read_file
from tailrace.errors import ConfigError
from tailrace.formats.x509_dates import Validity, certificate_dates, crl_dates
from tailrace.logs import get_logger
from tailrace.remoting.acceptor import Acceptor
from tailrace.remoting.tls import server_context
from tailrace.tls_settings import TlsConfig

__all__ = ["Certificate", "TlsReload", "acceptor_certificate"]

_log = get_logger(__name__)

PERIOD_S: Final = 2.0
FILE_MAX: Final = 1 << 20
"""Bytes of a file that are read."""
DAY_MS: Final = 86_400_000
WARNING_MS: Final = 14 * DAY_MS
"""Time before the end of a certificate from which each day has a warning."""
WARNING_PART: Final = 3
"""A certificate of a short life has warnings in the last third of it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Files of one use of TLS, all PEM."""

    load: Callable[[], Callable[[], None]]
    """Reads the files, and returns what has new handshakes use them. Raises ConfigError."""
    setting: str
    """Setting or option that names the certificate."""
    path: str
    key_path: str
    trust_path: str = ""
    list_path: str = ""
    """File of ``tls.server.crlPath``."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files."""
        return tuple(path for path in (self.path, self.key_path, self.trust_path, self.list_path) if path)


@final
class TlsReload:
    """Loads certificates, renews them between ``start`` and ``stop``, and warns before they expire."""

    def __init__(self, file_system: FileSystem, clock: Clock, period_s: float = PERIOD_S) -> None:
        self._file_system = file_system
        self._clock = clock
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None
        self._seen: list[tuple[Certificate, list[bytes]]] = []
        self._ends: dict[str, tuple[str, Validity]] = {}
        """File and validity of what expires first, by the name of the setting."""
        self._warned_ms: dict[str, int] = {}

    def add(self, certificate: Certificate) -> None:
        """Load a certificate, and watch its files. Raises ConfigError."""
        seen = self._look(certificate)
        certificate.load()()
        self._seen.append((certificate, seen))
        self._read_ends(certificate)
        self._warn()

    def expires_s(self) -> dict[str, float]:
        """Return the time until each file expires, negative after it, by the name of its setting."""
        now = self._clock.now_ms()
        return {name: (validity.end_ms - now) / 1000 for name, (_, validity) in list(self._ends.items())}

    def start(self) -> None:
        """Start to watch the files, in the running event loop."""
        if self._seen:
            self._task = asyncio.get_running_loop().create_task(
                supervised("TlsReload", self._step, self._period_s))

    async def stop(self) -> None:
        """Stop watching the files."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _step(self) -> None:
        for certificate, use in await asyncio.get_running_loop().run_in_executor(None, self._changed):
            use()
            events.CERTIFICATE_LOADED_AGAIN.log(_log, certificate=certificate.path)
        self._warn()

    def _changed(self) -> list[tuple[Certificate, Callable[[], None]]]:
        """Return the certificates whose files have changed and can be used, each with what puts it to use."""
        found = []
        for place, (certificate, before) in enumerate(self._seen):
            now = self._look(certificate)
            if now == before:
                continue
            self._seen[place] = certificate, now
            try:
                found.append((certificate, certificate.load()))
            except ConfigError as error:
                events.CERTIFICATE_CANNOT_BE_LOADED_AGAIN.log(_log, certificate=certificate.path, reason=error)
                continue
            self._read_ends(certificate)
        return found

    def _look(self, certificate: Certificate) -> list[bytes]:
        return [hashlib.sha256(self._read(path)).digest() for path in certificate.paths]

    def _read(self, path: str) -> bytes:
        try:
            return read_file(self._file_system, path, FILE_MAX)
        except OSError:
            return b""

    def _read_ends(self, certificate: Certificate) -> None:
        """Note when the files expire that were just loaded. A file without a readable date has no entry."""
        for name, path, dates in (
            (certificate.setting, certificate.path, certificate_dates),
            ("tls.server.crlPath", certificate.list_path, crl_dates),
        ):
            if not path:
                continue
            try:
                found = min(dates(self._read(path)), key=lambda one: one.end_ms, default=None)
            except ValueError:
                found = None
            before = self._ends.pop(name, None)
            if found is not None:
                self._ends[name] = path, found
            if self._ends.get(name) != before:
                self._warned_ms.pop(name, None)

    def _warn(self) -> None:
        """Log what has expired or will soon, once a day for each file."""
        now = self._clock.now_ms()
        for name, (path, (start_ms, end_ms)) in self._ends.items():
            left_ms, last = end_ms - now, self._warned_ms.get(name)
            if left_ms > min(WARNING_MS, (end_ms - start_ms) // WARNING_PART):
                continue
            if last is not None and now - last < DAY_MS and (left_ms > 0) == (end_ms > last):
                continue
            self._warned_ms[name] = now
            if left_ms > 0:
                events.CERTIFICATE_EXPIRES_SOON.log(_log, setting=name, file=path, hours=left_ms // 3_600_000)
            else:
                events.CERTIFICATE_HAS_EXPIRED.log(_log, setting=name, file=path, hours=-left_ms // 3_600_000)


def acceptor_certificate(config: TlsConfig, acceptor: Acceptor) -> Certificate | None:
    """Return the certificate of all ports but that of gRPC; None if no connection can use TLS.

    A certificate of the test mode is made and set here, because it has no files. Raises ConfigError.
    """
    if not config.serves_tls:
        return None
    if config.test_mode:
        acceptor.context = server_context(config)
        _say_set_up(config)
        events.THE_CERTIFICATE_IS_MADE_BY_THE_SERVER.log(_log, reason="tls.test.mode.enable")
        return None

    def load() -> Callable[[], None]:
        made = server_context(config)

        def use() -> None:
            if acceptor.context is None:
                _say_set_up(config)
            acceptor.context = made

        return use

    return Certificate(
        load=load, setting="tls.server.certPath", path=config.cert_path, key_path=config.key_path,
        trust_path=config.trust_cert_path, list_path=config.crl_path)


def _say_set_up(config: TlsConfig) -> None:
    events.TLS_IS_SET_UP.log(
        _log, mode=config.mode, certificate="made" if config.test_mode else config.cert_path,
        client_auth=config.need_client_auth)
