"""Make Arrow columns from record rows. ``kernels.columns`` does the work on bytes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.arrow.schema import COLUMN_NAMES
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import (
    SysFlag,
    decode_properties,
    decompress_body,
    unpack_host,
)
from tailrace.kernels import columns, record

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_BODY", "Columns", "Memory", "Rows", "gather"]

MAX_BODY: Final = 64 << 20
Rows = np.ndarray[Any, np.dtype[np.int64]]
# All columns of numbers are written in one pass. If they are a power of two apart, they get the same few lines of a
# processor's cache and displace each other; with this many numbers between them they do not.
_APART: Final = 40
_SHORT: Final = {
    "queueId": record.C_QUEUE_ID, "storeSize": record.C_SIZE, "flag": record.C_FLAG, "sysFlag": record.C_SYS_FLAG,
    "bodyCRC": record.C_BODY_CRC, "reconsumeTimes": record.C_RECONSUME_TIMES,
}
_LONG: Final = {
    "queueOffset": record.C_QUEUE_OFFSET, "commitLogOffset": record.C_PHY,
    "preparedTransactionOffset": record.C_PREPARED,
}
_TIMES: Final = {
    "bornTimestamp": record.C_BORN_TIMESTAMP, "storeTimestamp": record.C_STORE_TIMESTAMP,
}
_NUMBERS: Final = _SHORT | _LONG | _TIMES
_PARTS: Final = {
    "topic": (record.C_TOPIC_POS, record.C_TOPIC_LEN),
    "tags": (record.C_TAGS_POS, record.C_TAGS_LEN),
    "uniqKey": (record.C_UNIQ_POS, record.C_UNIQ_LEN),
    "body": (record.C_BODY_POS, record.C_BODY_LEN),
}
_HOSTS: Final = {
    "bornHost": (record.C_BORN_HOST_POS, int(SysFlag.BORNHOST_V6)),
    "storeHost": (record.C_STORE_HOST_POS, int(SysFlag.STOREHOST_V6)),
}


class Memory(Protocol):
    """Memory for the bytes of columns."""

    def take(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return an array of ``size`` bytes, not initialised."""
        ...


class Numbers:
    """Columns of numbers and times, those of ``names``. One pass over rows fills all of them, because rows are long."""

    def __init__(self, room: int, names: Collection[str] = COLUMN_NAMES) -> None:
        self._names = [name for name in _NUMBERS if name in names]
        self._columns = np.array([_NUMBERS[name] for name in self._names], dtype=np.int64)
        self._shorts = sum(name in _SHORT for name in self._names)
        self._short = np.empty((self._shorts, room + 2 * _APART), dtype=np.int32)
        self._long = np.empty((len(self._names) - self._shorts, room + _APART), dtype=np.int64)

    @property
    def places(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Arguments of ``kernels.packed_rows``: columns of rows, and memory for those of 32 and of 64 bits."""
        return self._columns, self._short, self._long

    def take(self, rows: Rows) -> None:
        """Copy the numbers of C-contiguous rows."""
        record.take_numbers(rows, self._columns, self._short, self._long)

    def make(self, name: str, kind: pa.DataType, count: int) -> pa.Array:
        """Return the column ``name`` with its first ``count`` rows as type ``kind``."""
        pa = pyarrow()
        place = self._names.index(name)
        found: np.ndarray[Any, Any]
        found = self._short[place] if place < self._shorts else self._long[place - self._shorts]
        if name in _TIMES:
            found = found[:count] * 1000  # Arrow's times are in microseconds
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(found)])


class Columns:
    """Columns of some rows. C_*_POS of the rows are positions in ``data``. ``body`` is the option's value.

    ``numbers`` has the numbers of the rows if they were taken before.
    """

    def __init__(
        self, data: bytes | memoryview, rows: Rows, store: str, body: str,
        rooms: Memory | None = None, numbers: Numbers | None = None,
    ) -> None:
        self._data = data
        self._rows = np.ascontiguousarray(rows)
        self._store = store
        self._body = body
        self._rooms = rooms
        self._properties: tuple[Rows, np.ndarray[Any, np.dtype[np.int32]]] | None = None
        self._numbers = numbers

    def make(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the column ``name`` as type ``kind``."""
        pa = pyarrow()
        rows = self._rows
        if name in _NUMBERS:
            if self._numbers is None:
                self._numbers = Numbers(len(rows))
                self._numbers.take(rows)
            return self._numbers.make(name, kind, len(rows))
        if name in _HOSTS:
            return self._hosts(*_HOSTS[name])
        if name == "body" and self._body == "none":
            return pa.nulls(len(rows), kind)
        if name == "body" and self._body == "decoded":
            return self._decoded(kind)
        if name in _PARTS:
            made = gather(self._data, rows, *_PARTS[name], self._rooms)
            return made if kind == pa.binary() else _text(made)
        match name:
            case "store":
                label = self._store.encode()
                offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(len(label))
                return _strings(offsets, np.frombuffer(label * len(rows), np.uint8))
            case "damaged":
                return pa.nulls(len(rows), kind)
            case "properties":
                return self._property_map(kind)
            case "keys":
                return self._keys(kind)
            case "msgId":
                return self._message_ids()
            case "deliverAt":
                return self._deliver_times(kind)
            case _:
                raise AssertionError(name)

    def _places(self) -> tuple[Rows, np.ndarray[Any, np.dtype[np.int32]]]:
        if self._properties is None:
            rows = self._rows
            room = int((rows[:, record.C_PROPS_LEN] // 4 + 1).sum())
            places = np.empty((room, columns.PLACE_COLUMNS), dtype=np.int64)
            offsets = np.empty(len(rows) + 1, dtype=np.int32)
            count = columns.find_properties(self._data, rows, places, offsets)
            assert count >= 0
            self._properties = places[:count], offsets
        return self._properties

    def _property_map(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        places, offsets = self._places()
        names = gather(self._data, places, columns.NAME_POS, columns.NAME_LEN, self._rooms)
        values = gather(
            self._data, places, columns.VALUE_POS, columns.VALUE_LEN, self._rooms)
        try:
            names = _utf8(names)
        except pa.ArrowInvalid:  # names that are not UTF-8 may become equal: decode them one by one
            at, length = record.C_PROPS_POS, record.C_PROPS_LEN
            return pa.array(
                [list(decode_properties(part).items()) for part in self._slices(at, length)], kind)
        pairs = pa.StructArray.from_arrays([names, _text(values)], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(self._rows), [None, pa.py_buffer(offsets)], children=[pairs])

    def _keys(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        rows = self._rows
        room = int((np.maximum(rows[:, record.C_KEYS_LEN], 0) // 2 + 1).sum())
        places = np.empty((room, columns.PLACE_COLUMNS), dtype=np.int64)
        offsets = np.empty(len(rows) + 1, dtype=np.int32)
        count = columns.find_keys(self._data, rows, places, offsets)
        assert count >= 0
        keys = _text(gather(self._data, places[:count], columns.NAME_POS, columns.NAME_LEN))
        return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets)], children=[keys])

    def _hosts(self, at: int, v6: int) -> pa.Array:
        rows = self._rows
        offsets = np.empty(len(rows) + 1, dtype=np.int32)
        out = np.empty(len(rows) * columns.HOST_BYTES, dtype=np.uint8)
        if columns.host_texts(self._data, rows, at, v6, offsets, out) >= 0:
            return _strings(offsets, out)
        texts = []
        for place, flag in zip(
            rows[:, at].tolist(), rows[:, record.C_SYS_FLAG].tolist(), strict=True):
            ip, port = unpack_host(bytes(self._data[place : place + (20 if flag & v6 else 8)]))
            texts.append(f"{ip}:{port}")
        return pyarrow().array(texts, pyarrow().string())

    def _message_ids(self) -> pa.Array:
        offsets = np.empty(len(self._rows) + 1, dtype=np.int32)
        out = np.empty(len(self._rows) * columns.ID_BYTES, dtype=np.uint8)
        columns.message_ids(self._data, self._rows, offsets, out)
        return _strings(offsets, out)

    def _deliver_times(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        places, offsets = self._places()
        count = len(self._rows)
        times = np.empty(count, dtype=np.int64)
        valid = np.empty((count + 7) // 8, dtype=np.uint8)
        missing = columns.deliver_times(self._data, places, offsets, times, valid)
        return pa.Array.from_buffers(
            kind, count, [pa.py_buffer(valid) if missing else None, pa.py_buffer(times * 1000)])

    def _slices(self, at: int, length: int) -> list[bytes]:
        return [
            bytes(self._data[p : p + n])
            for p, n in zip(
                self._rows[:, at].tolist(), self._rows[:, length].tolist(), strict=True)
        ]

    def _decoded(self, kind: pa.DataType) -> pa.Array:
        flags = self._rows[:, record.C_SYS_FLAG]
        if not (flags & SysFlag.COMPRESSED).any():
            return gather(self._data, self._rows, *_PARTS["body"], self._rooms)
        bodies = self._slices(*_PARTS["body"])
        places = self._rows[:, record.C_PHY].tolist()
        found = []
        for body, flag, place in zip(bodies, flags.tolist(), places, strict=True):
            try:
                found.append(decompress_body(body, flag, MAX_BODY))
            except CorruptionError as error:
                raise CorruptionError(str(error), phy_offset=place) from error
        return pyarrow().array(found, kind)


def _strings(offsets: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> pa.Array:
    pa = pyarrow()
    return pa.Array.from_buffers(
        pa.string(), len(offsets) - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]])])


def gather(
    data: bytes | memoryview, rows: Rows, at: int, length: int, rooms: Memory | None = None
) -> pa.Array:
    """Return parts of the data as one binary column, in memory of ``rooms`` if given."""
    pa = pyarrow()
    count = len(rows)
    offsets = np.empty(count + 1, dtype=np.int32)
    valid = np.empty((count + 7) // 8, dtype=np.uint8)
    total = int(rows[:, length].sum())  # a missing part has length 0
    out = rooms.take(total) if rooms is not None else np.empty(total, dtype=np.uint8)
    copied, missing = columns.copy_parts(data, rows, at, length, offsets, valid, out)
    assert copied == total, f"{copied} bytes of {total}"
    return pa.Array.from_buffers(
        pa.binary(), count,
        [pa.py_buffer(valid) if missing else None, pa.py_buffer(offsets), pa.py_buffer(out)])


def _utf8(made: pa.Array) -> pa.Array:
    """Return a binary column as a column of texts, without a copy. Raises ArrowInvalid for bytes that are not UTF-8."""
    pa = pyarrow()
    valid, offsets, out = made.buffers()
    if columns.is_ascii(memoryview(out).cast("B")):  # the cast looks at each value by itself, which takes much longer
        return pa.Array.from_buffers(pa.string(), len(made), [valid, offsets, out])
    return made.cast(pa.string())


def _text(made: pa.Array) -> pa.Array:
    pa = pyarrow()
    try:
        return _utf8(made)
    except pa.ArrowInvalid:  # bytes that are not UTF-8 are replaced by U+FFFD
        return pa.array(
            [None if part is None else part.decode("utf-8", "replace") for part in made.to_pylist()],
            pa.string())
