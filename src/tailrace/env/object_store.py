"""Objects of a bucket, passed to the code that needs them, with retries for each request.

The package obstore makes the requests and signs them. `ObjectStore` adds what a durable publication needs:

- A write has a condition: the key is new (``If-None-Match: *``), or the object has a given version (``If-Match``). The
  request has a SHA-256 of the body, which the server compares before it stores anything.
- A request that fails in a way that may pass is sent again, with growing pauses, until ``patience_ms`` are over. If the
  answer to a write was lost, the next try finds the own object there. It is then compared, and counts as written.
- Every failure is one `ObjectStoreError`, which names bucket, key and operation.

Sources: the documentation of Amazon S3 for conditional writes and checksums; obstore 0.12 for what its errors are.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tailrace import events
from tailrace.env.clock import Clock, SystemClock
from tailrace.env.entropy import Entropy, SystemEntropy
from tailrace.errors import ConfigError, MissingPackageError
from tailrace.logs import get_logger

if TYPE_CHECKING:
    from obstore.store import S3Store

__all__ = ["ObjectHead", "ObjectRefusedError", "ObjectStore", "ObjectStoreError", "Place", "Timeouts", "place_of"]

_log = get_logger(__name__)
_Result = TypeVar("_Result")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_TRANSIENT: Final = frozenset({408, 409, 425, 429})
"""Answers below 500 that may be others the next time; 409 is a write at the same time as another one."""
_TRANSIENT_CODES: Final = ("BadDigest", "IncompleteBody", "RequestTimeout", "ContentSHA256Mismatch", "ChecksumMismatch")
"""Codes of answers for a body that was changed or cut on its way."""
_FULL: Final = ("InsufficientStorage", "QuotaExceeded", "StorageFull", "507", "No space left", "no free volumes")
_NO_ANSWER: Final = "error sending request"
"""How the text of an error ends whose cause, such as a refused connection, stands only in its debug form."""
_CAUSE: Final = re.compile(r'(?:message|error): "([^"]+)"')
_KIND: Final = re.compile(r"HttpError \{\s+kind: (\w+)")
_FIRST_PAUSE_MS: Final = 50
_LAST_PAUSE_MS: Final = 5_000
_TEXT_MAX: Final = 300
_CREDENTIALS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a web identity, a container or an instance has a "
    "role")


class Place(NamedTuple):
    """A prefix of a bucket. ``endpoint`` is the URL of a server that is not Amazon's."""

    bucket: str
    prefix: str
    endpoint: str
    region: str

    @property
    def url(self) -> str:
        """The place as a URL that ``place_of`` reads."""
        options = urlencode(
            {name: value for name, value in (("endpoint", self.endpoint), ("region", self.region)) if value}, safe=":/")
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket}{path}{'?' if options else ''}{options}"


class Timeouts(NamedTuple):
    """Limits of one request, in ms: to connect, for a small one, for one with the bytes of a data file."""

    connect_ms: int = 5_000
    small_ms: int = 15_000
    data_ms: int = 300_000


class ObjectHead(NamedTuple):
    """Size, ETag, and time of the last change by the clock of the server, in ms."""

    size: int
    tag: str
    modified_ms: int


class ObjectStoreError(OSError):
    """A request failed; the text names the object, the operation and what the server said."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(errno.EIO, what)

    def __str__(self) -> str:
        return self.what

    def __reduce__(self) -> tuple[type[ObjectStoreError], tuple[str]]:
        return ObjectStoreError, (self.what,)


class ObjectRefusedError(ObjectStoreError):
    """The condition of a write was not true: there is another object."""


def place_of(url: str, variables: Mapping[str, str] | None = None) -> Place:
    """Return the place that a URL ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME`` names.

    Without these options the variables AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION count.
    Raises ConfigError.
    """
    variables = os.environ if variables is None else variables
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigError(f"{url} is not s3://BUCKET/PREFIX: {error}") from None
    options = dict(given)
    if parts.scheme != "s3" or not parts.hostname or "@" in parts.netloc or parts.fragment:
        shown = url if "@" not in url else f"s3://...@{url.rpartition('@')[2]}"
        raise ConfigError(f"{shown} is not s3://BUCKET/PREFIX, without a user, a password and a #")
    if unknown := sorted(set(options) - {"endpoint", "region"}):
        raise ConfigError(
            f"{url.partition('?')[0]} has the option {unknown[0]}, which is not known: the options are endpoint and "
            "region, and credentials come from the variables of AWS")
    endpoint = options.get("endpoint") or variables.get("AWS_ENDPOINT_URL_S3") or variables.get("AWS_ENDPOINT_URL", "")
    region = options.get("region") or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or "us-east-1"
    if endpoint and urlsplit(endpoint).scheme not in {"http", "https"}:
        raise ConfigError(f"the endpoint {endpoint} is not http://HOST:PORT or https://HOST:PORT")
    return Place(parts.netloc, parts.path.strip("/"), endpoint.rstrip("/"), region)


@final
class ObjectStore:
    """The objects below a prefix of a bucket. Any thread may call it. Keys are relative to the prefix."""

    def __init__(
        self, place: Place, *, patience_ms: int = 60_000, timeouts: Timeouts | None = None, clock: Clock | None = None,
        entropy: Entropy | None = None, sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra
            from obstore import exceptions  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise MissingPackageError("archives in an object store", error.name or "obstore", "s3") from None
        self.place = place
        self._obstore, self._exceptions = obstore, exceptions
        self._patience_ns = patience_ms * 1_000_000
        self._clock, self._entropy, self._sleep = clock or SystemClock(), entropy or SystemEntropy(), sleep
        timeouts = timeouts or Timeouts()
        self._small, self._data = (
            _client(place, timeouts.connect_ms, limit) for limit in (timeouts.small_ms, timeouts.data_ms))

    def path_of(self, key: str) -> str:
        """Return how messages show an object."""
        return f"s3://{self.place.bucket}/{f'{self.place.prefix}/' if self.place.prefix else ''}{key}"

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Return an object and its ETag; None if it does not exist."""
        def get() -> tuple[bytes, str]:
            found = self._obstore.get(self._data, key)
            return bytes(found.bytes()), found.meta["e_tag"] or ""

        return self._call("read", key, get)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        """Return bytes of an object; fewer only at its end. Raises FileNotFoundError."""
        if length <= 0:
            return memoryview(b"")
        found = self._call(
            "read", key, lambda: memoryview(self._obstore.get_range(self._data, key, start=start, length=length)))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self.path_of(key))
        return found

    def head(self, key: str) -> ObjectHead | None:
        """Return size, ETag and time of an object; None if it does not exist."""
        found = self._call("look at", key, lambda: self._obstore.head(self._small, key))
        return None if found is None else _head(found)

    def list(self, directory: str) -> list[str]:
        """Return the names directly below a directory, sorted; [] if it does not exist.

        Some servers list a directory for a while after its last object was deleted.
        """
        prefix = f"{directory}/" if directory else ""

        def read() -> list[str]:
            found = self._obstore.list_with_delimiter(self._small, directory or None)
            paths = [*(one["path"].rstrip("/") for one in found["objects"]), *found["common_prefixes"]]
            # Some servers also list an object for the directory itself.
            return sorted(path.rstrip("/").removeprefix(prefix) for path in paths if path.startswith(prefix))

        return self._call("list", directory, read) or []

    def walk(self, directory: str) -> Sequence[tuple[str, ObjectHead]]:
        """Return the keys below a directory, at any depth, with what a head says of them; none if it does not exist."""
        def read() -> tuple[tuple[str, ObjectHead], ...]:
            pages = self._obstore.list(self._small, directory or None)
            return tuple((one["path"], _head(one)) for page in pages for one in page)

        return self._call("list", directory, read) or ()

    def put(self, key: str, data: bytes, version: str = "") -> str:
        """Write an object that must be new, or must have the ETag ``version``. Return its ETag.

        Raises ObjectRefusedError if there is another object, also one that is written at the same time.
        """
        mode: Any = {"e_tag": version} if version else "create"

        def put() -> str:
            made = self._obstore.put(self._data, key, data, mode=mode, use_multipart=False)
            return made["e_tag"] or ""

        try:
            tag = self._call("write", key, put)
        except ObjectRefusedError:
            there = self.get(key)
            if there is None or there[0] != data:
                raise
            return there[1]  # an earlier try wrote it, and its answer was lost
        if tag is None:
            raise ObjectStoreError(f"cannot write {self.path_of(key)}: the object to replace is gone")
        if not tag:
            raise ObjectStoreError(f"cannot write {self.path_of(key)}: the server returns no ETag")
        return tag

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if it does not exist."""
        self._call("delete", key, lambda: self._obstore.delete(self._small, key))

    def _call(self, what: str, key: str, request: Callable[[], _Result]) -> _Result | None:
        """Make a request, again while its failure may pass. Return None for an object that does not exist."""
        began, pause_ms, tries = self._clock.monotonic_ns(), _FIRST_PAUSE_MS, 1
        while True:
            try:
                return request()
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise self._error(what, key, "there is no such bucket") from None
                return None
            except (self._exceptions.AlreadyExistsError, self._exceptions.PreconditionError):
                raise ObjectRefusedError(f"cannot {what} {self.path_of(key)}: there is another object") from None
            except (self._exceptions.BaseError, OSError, ValueError) as error:
                text, waited_ns = str(error), self._clock.monotonic_ns() - began
                if "NoSuchBucket" in text:
                    raise self._error(what, key, "there is no such bucket") from None
                if _status(text) in {401, 403} or isinstance(
                    error, self._exceptions.PermissionDeniedError | self._exceptions.UnauthenticatedError
                ):
                    raise self._error(
                        what, key, f"the credentials do not allow it: {_first_words(error)}; {_CREDENTIALS}") from None
                if not _may_pass(text) or waited_ns + pause_ms * 1_000_000 > self._patience_ns:
                    full = "the store is full: " if any(one in text for one in _FULL) else ""
                    raise self._error(what, key, f"{full}{_first_words(error)}") from None
                tries += 1
                events.A_REQUEST_TO_AN_OBJECT_STORE_IS_SENT_AGAIN.log(
                    _log, operation=what, path=self.path_of(key), tries=tries, cause=_first_words(error))
                self._sleep((pause_ms + self._entropy.randrange(pause_ms)) / 2_000)
                pause_ms = min(pause_ms * 2, _LAST_PAUSE_MS)

    def _error(self, what: str, key: str, why: str) -> ObjectStoreError:
        where = f" at {self.place.endpoint}" if self.place.endpoint else ""
        return ObjectStoreError(f"cannot {what} {self.path_of(key)}{where}: {why}")


def _client(place: Place, connect_ms: int, timeout_ms: int) -> S3Store:
    from obstore import exceptions  # noqa: PLC0415
    from obstore.store import S3Store  # noqa: PLC0415

    variables = os.environ
    if variables.get("AWS_PROFILE") and not variables.get("AWS_ACCESS_KEY_ID"):
        raise ConfigError(f"AWS_PROFILE={variables['AWS_PROFILE']} is not supported: {_CREDENTIALS}")
    options: dict[str, Any] = {
        "allow_http": place.endpoint.startswith("http://"), "connect_timeout": timedelta(milliseconds=connect_ms),
        "timeout": timedelta(milliseconds=timeout_ms)}
    if bundle := variables.get("AWS_CA_BUNDLE"):
        options["root_certificate"] = Path(bundle).read_bytes()
    config: Any = {
        "region": place.region, "checksum_algorithm": "SHA256", "conditional_put": "etag",
        **({"endpoint": place.endpoint, "aws_endpoint_url_s3": place.endpoint} if place.endpoint else {})}
    try:
        return S3Store(
            place.bucket, prefix=place.prefix or None, config=config, client_options=options,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(0)})
    except (exceptions.BaseError, ValueError) as error:
        raise ConfigError(f"{place.url}: {_first_words(error)}") from None


def _head(found: Any) -> ObjectHead:
    return ObjectHead(found["size"], found["e_tag"] or "", int(found["last_modified"].timestamp() * 1000))


def _may_pass(text: str) -> bool:
    """Return True if the same request may succeed later."""
    if any(code in text for code in _TRANSIENT_CODES):
        return True
    status = _status(text)
    return not status or (status >= 500 and status not in {501, 507}) or status in _TRANSIENT


def _status(text: str) -> int:
    """Return the status of the answer that an error names; 0 if there was no answer."""
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def _first_words(error: BaseException) -> str:
    """Return an error's text in one line, without the debug form that obstore adds, but with the cause in it."""
    words, _, debug = str(error).partition("\n\nDebug source")
    text = " ".join(words.split())
    causes = (_CAUSE.findall(debug) or _KIND.findall(debug)) if text.endswith(_NO_ANSWER) else []
    text = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
    return f"{text}: {causes[-1]}" if causes else text
