"""Make a row for each message of an inner batch, which has one record for several messages."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

from tailrace.errors import MessageIllegalError
from tailrace.formats.commitlog import CRC_MASK, decode_batch
from tailrace.formats.inner_batch import INNER_BATCH_BITS, MIN_ITEM_LENGTH
from tailrace.kernels import record
from tailrace.kernels.shared import constants as C

__all__ = ["message_rows"]

_LENGTH: Final = 2
"""Bytes of the length of the properties, which come after the body."""
Rows = np.ndarray[Any, np.dtype[np.int64]]


def message_rows(data: bytes | memoryview, rows: Rows) -> Rows:
    """Return rows of messages: the row of an inner batch is replaced by one for each message of it.

    Queue offset, flag, body and properties are those of the message; the other columns are those of the record. A
    record whose body cannot be decoded as a batch keeps its row, as in ``inner_batch.unwrapped``.
    """
    inner = np.flatnonzero(rows[:, C.SYS_FLAG] & INNER_BATCH_BITS == INNER_BATCH_BITS)
    parts, done = [], 0
    for number in inner.tolist():
        parts += [rows[done:number], _of_record(data, rows[number])]
        done = number + 1
    return np.concatenate([*parts, rows[done:]]) if parts else rows


def _of_record(data: bytes | memoryview, row: Rows) -> Rows:
    at, length = int(row[C.BODY_POS]), int(row[C.BODY_LEN])
    try:
        items = decode_batch(bytes(data[at : at + length]))
    except MessageIllegalError:
        return row[np.newaxis]
    made = np.repeat(row[np.newaxis], len(items), axis=0)
    made[:, C.QUEUE_OFFSET] += np.arange(len(items))
    for one, (flag, body, properties) in zip(made, items, strict=True):
        body_at = at + MIN_ITEM_LENGTH - _LENGTH
        properties_at = body_at + len(body) + _LENGTH
        one[C.FLAG], one[C.BODY_CRC] = flag, zlib.crc32(body) & CRC_MASK
        one[C.BODY_POS], one[C.BODY_LEN] = body_at, len(body)
        one[C.PROPS_POS], one[C.PROPS_LEN] = properties_at, len(properties)
        at = properties_at + len(properties)
    record.read_properties(data, made)
    return made
