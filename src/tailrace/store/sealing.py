"""Placeholder records over damaged bytes, so that a Java broker does not end the log there.

A placeholder has the length of the damage and the type of a rolled back transaction, because brokers write no
queue unit and no index entry for that type. If the damage reaches the end of its segment, a blank record is
written instead. The units of the damaged messages stay and are never served.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.formats.commitlog import BLANK, BLANK_MAGIC, CRC_MASK, SysFlag, record_size
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C
from tailrace.segments import MappedFile
from tailrace.store.walk.log_walk import Damage
from tailrace.store.walk.scan import Rows

__all__ = ["SEALED_TOPIC", "placeholder", "sealed_rows"]

SEALED_TOPIC: Final = "TAILRACE_SEALED"
_RAW_TOPIC: Final = SEALED_TOPIC.encode()
_HOST: Final = bytes(8)


def placeholder(damage: Damage, file: MappedFile, timestamp_ms: int) -> bytes:
    """Return the bytes to write at ``damage.phy_offset``; b"" if the damage is too small for a record."""
    end = file.file_from_offset + file.size
    if damage.until >= end:
        size = end - damage.phy_offset
        return BLANK.pack(size, BLANK_MAGIC) if size >= BLANK.size else b""
    least = record_size(2 * len(_HOST), 0, len(_RAW_TOPIC), 0)
    if damage.size < least:
        return b""
    body = bytes(damage.size - least)
    made = bytearray(damage.size + BLANK.size)
    size = record.encode(
        made, 0, len(made), damage.phy_offset, 0, 0, 0, SysFlag.TRANSACTION_ROLLBACK, timestamp_ms,
        _HOST, timestamp_ms, _HOST, 0, 0, body, record.crc32(body, 0, len(body)) & CRC_MASK,
        _RAW_TOPIC, b"", False)
    assert size == damage.size
    return bytes(made[:size])


def sealed_rows(data: Any, rows: Rows) -> list[Damage]:
    """Return the damage that placeholders among record rows cover."""
    found = []
    mask = (rows[:, C.SYS_FLAG] & SysFlag.TRANSACTION_MASK) == SysFlag.TRANSACTION_ROLLBACK
    for row in rows[mask] if bool(mask.any()) else ():
        at = int(row[C.TOPIC_POS])
        if bytes(data[at : at + int(row[C.TOPIC_LEN])]) == _RAW_TOPIC:
            start = int(row[C.PHY])
            found.append(Damage(start, start + int(row[C.SIZE]), "sealed", ""))
    return found
