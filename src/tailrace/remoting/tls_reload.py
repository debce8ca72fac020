"""Reload of certificates without a restart: the files are read every two seconds.

If their contents have changed, new handshakes use them; open connections are not affected. If the files cannot be
used, such as a new certificate without its new key, the old certificate stays in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from typing import Final, final

from tailrace import events
from tailrace.env.filesystem import FileSystem
from tailrace.env.supervision import supervised
from tailrace.env.whole_files import read_file
from tailrace.errors import ConfigError
from tailrace.logs import get_logger
from tailrace.remoting.entrance import Entrance
from tailrace.remoting.tls import server_context
from tailrace.tls_settings import TlsConfig

__all__ = ["TlsReload"]

_log = get_logger(__name__)

PERIOD_S: Final = 2.0
FILE_MAX: Final = 1 << 20
"""Bytes of a file that are read."""


@final
class TlsReload:
    """Sets the TLS context of ``entrance``, and renews it between ``start`` and ``stop``."""

    def __init__(
        self, config: TlsConfig, entrance: Entrance, file_system: FileSystem, period_s: float = PERIOD_S
    ) -> None:
        """Load the certificate. Raises ConfigError."""
        self._config = config
        self._entrance = entrance
        self._file_system = file_system
        self._period_s = period_s
        self._paths = [] if config.test_mode else [
            path for path in (config.cert_path, config.key_path, config.trust_cert_path) if path]
        self._task: asyncio.Task[None] | None = None
        self._seen = self._look()
        entrance.context = server_context(config)
        if config.test_mode and entrance.context is not None:
            events.THE_CERTIFICATE_IS_MADE_BY_THE_SERVER.log(_log, reason="tls.test.mode.enable")
        if entrance.context is not None:
            events.TLS_IS_SET_UP.log(
                _log, mode=config.mode, certificate="made" if config.test_mode else config.cert_path,
                client_auth=config.need_client_auth)

    def start(self) -> None:
        """Start to watch the files, in the running event loop."""
        if self._paths and self._entrance.context is not None:
            self._task = asyncio.get_running_loop().create_task(
                supervised("TlsReload", self._step, self._period_s))

    async def stop(self) -> None:
        """Stop watching the files."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _step(self) -> None:
        if (context := await asyncio.get_running_loop().run_in_executor(None, self._changed)) is not None:
            self._entrance.context = context

    def _changed(self) -> ssl.SSLContext | None:
        """Return a new context if the files have changed and can be used; None otherwise."""
        now = self._look()
        if now == self._seen:
            return None
        self._seen = now
        try:
            made = server_context(self._config)
        except ConfigError as error:
            events.CERTIFICATE_CANNOT_BE_LOADED_AGAIN.log(_log, certificate=self._config.cert_path, reason=error)
            return None
        events.CERTIFICATE_LOADED_AGAIN.log(_log, certificate=self._config.cert_path)
        return made

    def _look(self) -> list[bytes]:
        found = []
        for path in self._paths:
            try:
                found.append(hashlib.sha256(read_file(self._file_system, path, FILE_MAX)).digest())
            except OSError:
                found.append(b"")
        return found
