"""Placeholder records over damaged bytes, so that a Java broker does not end the log there.

A placeholder has the length of the damage and the type of a rolled back transaction, because brokers write no
queue unit and no index entry for that type. If the damage reaches the end of its segment, a blank record is
written instead. The units of the damaged messages stay and are never served.

Damage begins and ends where records did, so it is never shorter than one with a topic of one letter and nothing else.
Where the name of the placeholder's topic does not fit, only its first letters are written. Such a record counts as a
placeholder only if each of its bytes is that of one.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.formats.commitlog import (
    BLANK,
    BLANK_MAGIC,
    CRC_MASK,
    MESSAGE_HEAD,
    SysFlag,
    record_size,
)
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import Rows

__all__ = ["SEALED_TOPIC", "placeholder", "sealed_rows"]

SEALED_TOPIC: Final = "TAILRACE_SEALED"
_RAW_TOPIC: Final = SEALED_TOPIC.encode()
_HOST: Final = bytes(8)
_EMPTY: Final = record_size(2 * len(_HOST), 0, 0, 0)
"""Length of a record with an empty body, topic and properties."""


def placeholder(damage: Damage, file: MappedFile, timestamp_ms: int) -> bytes:
    """Return the bytes to write at ``damage.phy_offset``; b"" if the damage is too small for a record."""
    end = file.file_from_offset + file.size
    if damage.until >= end:
        size = end - damage.phy_offset
        return BLANK.pack(size, BLANK_MAGIC) if size >= BLANK.size else b""
    return _record(damage.phy_offset, damage.size, timestamp_ms) if damage.size > _EMPTY else b""


def _record(phy_offset: int, size: int, timestamp_ms: int) -> bytes:
    """Return a placeholder of ``size`` bytes, more than `_EMPTY`."""
    topic = _RAW_TOPIC[: size - _EMPTY]
    body = bytes(size - _EMPTY - len(topic))
    made = bytearray(size + BLANK.size)
    written = record.encode(
        made, 0, len(made), phy_offset, 0, 0, 0, SysFlag.TRANSACTION_ROLLBACK, timestamp_ms,
        _HOST, timestamp_ms, _HOST, 0, 0, body, record.crc32(body, 0, len(body)) & CRC_MASK, topic, b"", False)
    assert written == size
    return bytes(made[:size])


def sealed_rows(data: Any, rows: Rows) -> list[Damage]:
    """Return the damage that placeholders among record rows cover."""
    found = []
    mask = (rows[:, C.SYS_FLAG] & SysFlag.TRANSACTION_MASK) == SysFlag.TRANSACTION_ROLLBACK
    for row in rows[mask] if bool(mask.any()) else ():
        at, start, size = int(row[C.TOPIC_POS]), int(row[C.PHY]), int(row[C.SIZE])
        topic = bytes(data[at : at + int(row[C.TOPIC_LEN])])
        if topic == _RAW_TOPIC or (size < _EMPTY + len(_RAW_TOPIC) and _is_short_placeholder(data, row)):
            found.append(Damage(start, start + size, "sealed", ""))
    return found


def _is_short_placeholder(data: Any, row: Rows) -> bool:
    """Return whether each byte of a record is that of a placeholder whose topic has no room."""
    at, size = int(row[C.BORN_HOST_POS]) - MESSAGE_HEAD.size, int(row[C.SIZE])
    return bytes(data[at : at + size]) == _record(int(row[C.PHY]), size, int(row[C.STORE_TIMESTAMP]))
