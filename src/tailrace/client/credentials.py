"""The user as which a client signs its requests, from a file or from the environment.

The file has two lines, as RocketMQ's ``conf/tools.yml``::

    accessKey: shop
    secretKey: Nq3...

A client without its own credentials uses the file that TAILRACE_CREDENTIALS names, or else TAILRACE_ACCESS_KEY and
TAILRACE_SECRET_KEY.
"""

from __future__ import annotations

import os
from typing import Final

from tailrace import events
from tailrace.auth.signature import Credentials
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.permissions import others_may_read
from tailrace.env.whole_files import read_file
from tailrace.errors import ConfigError
from tailrace.logs import get_logger
from tailrace.properties import parse_properties

__all__ = ["CREDENTIALS_FILE", "credentials_of", "read_credentials"]

_log = get_logger(__name__)

CREDENTIALS_FILE: Final = "TAILRACE_CREDENTIALS"
ACCESS_KEY: Final = "TAILRACE_ACCESS_KEY"
SECRET_KEY: Final = "TAILRACE_SECRET_KEY"
FILE_MAX: Final = 64 << 10


def read_credentials(path: str) -> Credentials:
    """Return the credentials in a file. Raises OSError, or ConfigError, whose text shows no secret."""
    try:
        values = parse_properties(read_file(OsFileSystem(), path, FILE_MAX).decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start}") from None
    found = [values.get(name, "").strip("'\"") for name in ("accessKey", "secretKey")]
    if not all(found):
        raise ConfigError(f"{path} needs two lines, accessKey: NAME and secretKey: PASSWORD")
    if others_may_read(path):
        events.CREDENTIALS_CAN_BE_READ_BY_OTHER_USERS_OF_THIS_MACHINE.log(_log, file=path)
    return Credentials(*found)


def credentials_of(given: Credentials | str | None) -> Credentials | None:
    """Return the given credentials, those in the given file, or those of the environment; None if nothing is set.

    Raises ConfigError or OSError.
    """
    if isinstance(given, Credentials):
        return given
    if path := given or os.environ.get(CREDENTIALS_FILE, ""):
        return read_credentials(path)
    found = [os.environ.get(name, "") for name in (ACCESS_KEY, SECRET_KEY)]
    if not any(found):
        return None
    if not all(found):
        raise ConfigError(f"{ACCESS_KEY} and {SECRET_KEY} are used together; one of them is not set")
    return Credentials(*found)
