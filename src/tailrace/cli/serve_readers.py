"""What ``serve`` says at a start about files that other users of the machine may read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tailrace import events
from tailrace.env.permissions import is_shared, others_may_read, readers_of, share_command
from tailrace.formats import filenames
from tailrace.logs import get_logger
from tailrace.store.log_paths import log_paths

if TYPE_CHECKING:
    from tailrace.cli.serve_settings import Settings

__all__ = ["warn_about_readers"]

_log = get_logger(__name__)


def warn_about_readers(
    store: Path, settings: Settings, config_file: Path | None, *secret_files: Path | None
) -> None:
    """Log each secret file and each directory of the store that others may read; nothing is changed.

    ``secret_files`` are those that options name. A file that does not exist is left out.
    """
    tls, auth = settings.tls, settings.auth
    named = [tls.key_path, tls.client_key_path, settings.broker.metrics_token_file]
    has_secret = (auth.init_authentication_user, auth.inner_client_authentication_credentials,
                  tls.key_password, tls.client_key_password)
    paths = {*filter(None, secret_files), *(Path(path) for path in named if path), *_access_files(store)}
    if config_file is not None and any(has_secret):
        paths.add(config_file)
    for path in sorted(paths):
        with contextlib.suppress(OSError):  # the code that reads the file says what is wrong
            if others_may_read(str(path)):
                events.CREDENTIALS_CAN_BE_READ_BY_OTHER_USERS_OF_THIS_MACHINE.log(_log, file=path)
    root = str(store.absolute())
    if store.exists() and not store.is_dir():
        return  # the open refuses a file
    for directory in dict.fromkeys((root, *log_paths(settings.store, root).all)):
        with contextlib.suppress(OSError):  # it is made by the start
            _look_at(directory, group=settings.store.store_group_readable)


def _access_files(store: Path) -> Iterator[Path]:
    for name in (filenames.USERS, filenames.ACLS):
        yield from (store / filenames.CONFIG / f"{name}{ending}" for ending in ("", ".bak", ".tmp"))


def _look_at(directory: str, *, group: bool) -> None:
    """Log who else may read a directory, or that its group cannot although it should. Raises OSError."""
    who, shared = readers_of(directory), is_shared(directory)
    if who == "every user" or (who and not shared):
        mode = "o-rwx" if shared or group else "go-rwx"
        events.THE_STORE_CAN_BE_READ_BY_OTHERS.log(
            _log, directory=directory, who=who, command=f"chmod -R {mode} {quote(directory)}")
    if group and not shared:
        events.THE_GROUP_CANNOT_READ_NEW_FILES.log(
            _log, directory=directory, command=share_command(directory))
