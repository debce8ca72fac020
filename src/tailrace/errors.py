"""Every exception of Tailrace, as a tree.

    StoreError
    ├─ ConfigError                 key, value, allowed range; all problems together
    ├─ StoreStateError
    │  ├─ StoreClosedError         used after close, or after a fork
    │  ├─ StoreLockedError         another process, or this one, has the directory
    │  ├─ NotAStoreError           the directory is not a store, or is of a newer format
    │  └─ StoreNotWritableError    the running flags forbid writing; with the reason
    ├─ CorruptionError             path, file_pos, phy_offset, expected, actual
    │  ├─ BadMagicError
    │  ├─ ChecksumMismatchError
    │  ├─ ImpossibleLengthError
    │  └─ UnsupportedVersionError
    ├─ UnknownTopicError           a store or server has no topic of that name; with the most similar one
    ├─ OddFileError                not a regular file, or too large; an OSError as well
    ├─ MissingPackageError         an optional package is not installed; an ImportError as well
    ├─ TailraceNotInstalledError   an executor of Spark runs a Python without this package
    ├─ ReplicationError            a slave must not continue with its master; with kind and position
    ├─ RawAppendError              bytes of a master that do not continue the log of its slave
    ├─ FatalStorageError           a sync failed; the process must stop writing
    │  └─ LockLostError            the lock of the directory is lost; the process must stop writing
    ├─ TransientError              the same call may succeed later
    │  ├─ DiskFullError
    │  ├─ FlushDiskTimeoutError
    │  └─ TimerFlowControlError     too many timers for one moment
    ├─ MessageIllegalError         a message that breaks a limit; names field, value and limit
    ├─ FilterExpressionError       a message filter that cannot be compiled; with place and reason
    ├─ DataLossError               a query needs an offset that retention has deleted
    └─ RemotingError
       ├─ RemotingConnectError
       ├─ RemotingTimeoutError
       ├─ RemotingClosedError      the connection ended before the answer
       ├─ DeliveryTimeoutError     a message could not be stored in its delivery_timeout
       ├─ RequestTimeoutError      a request was stored, and no reply came in time
       ├─ RemotingFrameError       bytes that are not a frame
       ├─ RemotingCommandError     a response with an error code
       └─ RefusalError             a request that is answered with a code and a remark

Expected outcomes (``PutMessageStatus``, ``GetMessageStatus``) are values in result objects, not
exceptions.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from tailrace.response_codes import explained_code
from tailrace.spellings import no_such

__all__ = [
    "BadMagicError",
    "ChecksumMismatchError",
    "ConfigError",
    "CorruptionError",
    "DataLossError",
    "DeliveryTimeoutError",
    "DiskFullError",
    "FatalStorageError",
    "FilterExpressionError",
    "FlushDiskTimeoutError",
    "ImpossibleLengthError",
    "LockLostError",
    "MessageIllegalError",
    "MissingPackageError",
    "NotAStoreError",
    "OddFileError",
    "RawAppendError",
    "RefusalError",
    "RemotingClosedError",
    "RemotingCommandError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingFrameError",
    "RemotingTimeoutError",
    "ReplicationError",
    "RequestTimeoutError",
    "StoreClosedError",
    "StoreError",
    "StoreLockedError",
    "StoreNotWritableError",
    "StoreStateError",
    "TailraceNotInstalledError",
    "TimerFlowControlError",
    "TransientError",
    "UnknownTopicError",
    "UnsupportedVersionError",
]


class StoreError(Exception):
    """Base class of all exceptions that Tailrace raises."""


class ConfigError(StoreError):
    """Settings that are not valid. ``problems`` has a sentence for each of them."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class StoreStateError(StoreError):
    """The store is not in a state that allows the call."""


class StoreClosedError(StoreStateError):
    """The store was closed, or is used in a forked child."""

    def __init__(self, what: str = "the store is closed") -> None:
        super().__init__(what)


class StoreLockedError(StoreStateError):
    """Another process, or this one, has the directory ``path`` open. A directory has only one writer.

    ``pid`` is the process, 0 if it is not known. ``address`` is that of its broker, "" unless ``tailrace serve``
    has the directory open.
    """

    def __init__(self, path: str, holder: str = "another process", pid: int = 0, address: str = "") -> None:
        self.path, self.holder, self.pid, self.address = path, holder, pid, address
        server = f"; tailrace serve, process {pid}, serves it at {address}" if address else ""
        super().__init__(f"{path} is locked by {holder}{server}")


class NotAStoreError(StoreStateError):
    """``path`` is not a store of a known format."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} is not a store directory: {reason}")


class StoreNotWritableError(StoreStateError):
    """The store is read-only; ``reason`` has time and cause."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the store is not writable: {reason}")


class CorruptionError(StoreError):
    """Bytes that do not match the format, with path and position."""

    def __init__(
        self,
        what: str,
        *,
        path: str = "",
        file_pos: int = -1,
        phy_offset: int = -1,
        expected: object = None,
        actual: object = None,
    ) -> None:
        self.what, self.path, self.file_pos = what, path, file_pos
        self.phy_offset, self.expected, self.actual = phy_offset, expected, actual
        parts = [what]
        if path:
            parts.append(f"file={path}")
        if file_pos >= 0:
            parts.append(f"file_pos={file_pos}")
        if phy_offset >= 0:
            parts.append(f"phy_offset={phy_offset}")
        if expected is not None or actual is not None:
            parts.append(f"expected={expected} actual={actual}")
        super().__init__(" ".join(parts))


class BadMagicError(CorruptionError):
    """A magic number that no version of the format has."""


class ChecksumMismatchError(CorruptionError):
    """A checksum that does not match its bytes."""


class ImpossibleLengthError(CorruptionError):
    """A length that is outside its file or that the format does not allow."""


class UnsupportedVersionError(CorruptionError):
    """A version that is newer than this software."""


class UnknownTopicError(StoreError):
    """``where`` has no topic ``topic``. ``known`` are the names of its topics, for the text."""

    def __init__(self, where: str, topic: str, known: Iterable[str] = ()) -> None:
        self.where, self.topic = where, topic
        super().__init__(no_such("topic", topic, known, where))


class OddFileError(StoreError, OSError):
    """``path`` is not a regular file, or is too large; nothing of it was read or written.

    It is also an OSError, so that code that does not need the file handles it like a file that cannot be read.
    """

    def __init__(self, path: str, what: str, number: int = errno.EINVAL) -> None:
        self.path, self.what = path, what
        OSError.__init__(self, number, f"{what}; move it away or put the right file there", path)

    def __str__(self) -> str:
        return f"{self.path} {self.strerror}"

    def __reduce__(self) -> tuple[type[OddFileError], tuple[str, str, int]]:
        return OddFileError, (self.path, self.what, self.errno or errno.EINVAL)


class FatalStorageError(StoreError):
    """A sync failed: its bytes may be lost, so the store takes no more writes and acknowledges nothing."""

    def __init__(self, path: str, cause: str) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"sync of {path} failed: {cause}; the store takes no more writes")


class LockLostError(FatalStorageError):
    """The lock of the directory is lost: another process may have it, so this one writes nothing more to it."""

    def __init__(self, path: str, cause: str) -> None:
        self.path, self.cause = path, cause
        StoreError.__init__(self, cause)


class RawAppendError(StoreError):
    """Bytes of a master that do not continue the log of its slave; the log is unchanged."""


class DispatchWaitsError(StoreError):
    """The dispatch of a slave cannot continue before its broker knows more of a topic; it tries again soon."""


class ReplicationError(StoreError):
    """A slave must not continue with its master until an operator has decided.

    ``kind`` is a key of `tailrace.ha.slave.STOPS`. ``phy_offset`` is the position of the first different record of
    logs that differ, else -1.
    """

    def __init__(self, kind: str, what: str, phy_offset: int = -1) -> None:
        self.kind, self.phy_offset = kind, phy_offset
        super().__init__(what)


class MissingPackageError(StoreError, ImportError):
    """An optional package is not installed.

    ``extra`` is the extra of tailrace that installs it; empty for a package of the repository's folder ``packages``.
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        self.what, self.package, self.extra = what, package, extra
        installed = f"'.[{extra}]'" if extra else f". ./packages/{package}"
        super().__init__(f"{what} need the package {package}: pip install {installed} in the checkout")

    def __reduce__(self) -> tuple[type[MissingPackageError], tuple[str, str, str]]:
        return MissingPackageError, (self.what, self.package, self.extra)


class TailraceNotInstalledError(StoreError):
    """An executor of Spark lacks this package, or has another release of it."""


class TransientError(StoreError):
    """The same call may succeed later."""


class DiskFullError(TransientError):
    """The disk has no room for ``path``; nothing was written."""

    def __init__(self, path: str, cause: str) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"no space for {path}: {cause}")


class TimerFlowControlError(TransientError):
    """Too many timers are due in the same slot."""


class FlushDiskTimeoutError(TransientError):
    """The message is appended, but its sync did not finish in ``timeout_ms``."""

    def __init__(self, phy_offset: int, timeout_ms: int) -> None:
        self.phy_offset, self.timeout_ms = phy_offset, timeout_ms
        super().__init__(f"phy_offset={phy_offset} is appended but not synced after {timeout_ms} ms")


class MessageIllegalError(StoreError):
    """A message that the format or the configuration forbids; nothing was written."""

    def __init__(self, field: str, reason: str) -> None:
        self.field, self.reason = field, reason
        super().__init__(f"{field}: {reason}")


class FilterExpressionError(StoreError):
    """A message filter that cannot be compiled; the message says where and why."""


class DataLossError(StoreError):
    """Offsets that retention has deleted."""

    def __init__(self, topic: str, queue_id: int, asked: int, first: int) -> None:
        self.topic, self.queue_id, self.asked, self.first = topic, queue_id, asked, first
        super().__init__(
            f"{topic} queue {queue_id}: offset {asked} was deleted, the first offset that is left is {first}; read it "
            f"from an archive with fallback=archive, or continue at {first} with failOnDataLoss=false"
        )


class RemotingError(StoreError):
    """A request or a connection to another process has failed."""


class RemotingConnectError(RemotingError):
    """No connection to ``address``."""

    def __init__(self, address: str, cause: str) -> None:
        self.address, self.cause = address, cause
        super().__init__(f"cannot connect to {address}: {cause}")


class RemotingTimeoutError(RemotingError):
    """``address`` did not answer in ``timeout_ms``."""

    def __init__(self, address: str, timeout_ms: int) -> None:
        self.address, self.timeout_ms = address, timeout_ms
        super().__init__(f"{address} did not answer in {timeout_ms} ms")


class RemotingClosedError(RemotingError):
    """The connection to ``address`` ended before the answer; ``why`` is empty or the cause."""

    def __init__(self, address: str, why: str = "") -> None:
        self.address, self.why = address, why
        super().__init__(f"the connection to {address} was closed{f': {why}' if why else ''}")


class DeliveryTimeoutError(RemotingError):
    """A message to ``topic`` could not be stored in ``tried_ms``, its `delivery_timeout`.

    ``tries`` is the number of tries, and ``last`` the error of the last one. With ``may_be_stored`` a try ended without
    an answer, so the broker may have stored the message.
    """

    def __init__(self, topic: str, tried_ms: int, tries: int, last: RemotingError, *, may_be_stored: bool) -> None:
        self.topic, self.tried_ms, self.tries, self.last = topic, tried_ms, tries, last
        self.may_be_stored = may_be_stored
        super().__init__(
            f"a message to {topic} {'may not be' if may_be_stored else 'is not'} stored after {tried_ms / 1000:.1f} s "
            f"and {tries} {'try' if tries == 1 else 'tries'}; the last failed because: {last}")


class RequestTimeoutError(RemotingError):
    """A request to ``topic`` was stored, and no consumer replied in ``timeout_ms``."""

    def __init__(self, topic: str, timeout_ms: int) -> None:
        self.topic, self.timeout_ms = topic, timeout_ms
        super().__init__(
            f"the request to {topic} is stored, and no reply came in {timeout_ms} ms; is a consumer of the topic "
            "running, and does its listener call reply?")


class RemotingFrameError(RemotingError):
    """Bytes on a connection that are not a frame; the connection must be closed."""


class RemotingCommandError(RemotingError):
    """A response whose ``code`` is not the success code; ``remark`` is the peer's text.

    The text of the error says first what the answer means and what to do; ``says`` replaces this part.
    """

    def __init__(self, code: int, remark: str, address: str = "", says: str = "") -> None:
        self.code, self.remark, self.address, self.says = code, remark, address, says
        super().__init__(explained_code(code, remark, address, says))


class RefusalError(RemotingError):
    """A request that is not served; its answer has the ``code``, the ``remark`` and the fields ``ext``."""

    closes = False
    """Whether the server closes the connection after the answer."""

    def __init__(self, code: int, remark: str, ext: Mapping[str, str] | None = None) -> None:
        self.code, self.remark, self.ext = code, remark, ext or {}
        super().__init__(remark)
