"""Make Arrow columns from record rows. ``kernels.columns`` does the work on bytes."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np

from tailrace.arrow import pyarrow
from tailrace.arrow.memory import Array, array
from tailrace.errors import CorruptionError
from tailrace.formats.commitlog import (
    SysFlag,
    decode_properties,
    decompress_body,
    unpack_host,
)
from tailrace.kernels import columns, record
from tailrace.kernels.shared import constants as C

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MAX_BODY", "Columns", "Fields", "Rows", "gather"]

MAX_BODY: Final = 64 << 20
Rows = np.ndarray[Any, np.dtype[np.int64]]
# Fields are written in one pass. If they are a power of two apart, they get the same few lines of a processor's cache
# and displace each other; with this many numbers between them they do not.
_APART: Final = 40
_SHORT: Final = {
    "queueId": C.QUEUE_ID, "storeSize": C.SIZE, "flag": C.FLAG, "sysFlag": C.SYS_FLAG,
    "bodyCRC": C.BODY_CRC, "reconsumeTimes": C.RECONSUME_TIMES,
}
_LONG: Final = {
    "queueOffset": C.QUEUE_OFFSET, "commitLogOffset": C.PHY,
    "preparedTransactionOffset": C.PREPARED, "bornTimestamp": C.BORN_TIMESTAMP,
    "storeTimestamp": C.STORE_TIMESTAMP,
}
_MICROS: Final = 1000
"""Arrow's times are in microseconds, those of a store in milliseconds."""
_FACTORS: Final = {"bornTimestamp": _MICROS, "storeTimestamp": _MICROS}
_PARTS: Final = {
    "topic": (C.TOPIC_POS, C.TOPIC_LEN),
    "tags": (C.TAGS_POS, C.TAGS_LEN),
    "uniqKey": (C.UNIQ_POS, C.UNIQ_LEN),
    "body": (C.BODY_POS, C.BODY_LEN),
}
_HOSTS: Final = {
    "bornHost": (C.BORN_HOST_POS, int(SysFlag.BORNHOST_V6)),
    "storeHost": (C.STORE_HOST_POS, int(SysFlag.STOREHOST_V6)),
}
_NOT_ASCII: Final = 128
_PROPERTIES: Final = (C.PROPS_POS, C.PROPS_LEN)
_KEYS: Final = (C.KEYS_POS, C.KEYS_LEN)
_NEEDED: Final[dict[str, tuple[int, ...]]] = {
    **_PARTS, "body": (*_PARTS["body"], C.SYS_FLAG, C.PHY),
    **{name: (at, C.SYS_FLAG) for name, (at, _) in _HOSTS.items()},
    "properties": _PROPERTIES, "deliverAt": _PROPERTIES, "keys": _KEYS,
    "msgId": (C.STORE_HOST_POS, C.SYS_FLAG, C.PHY),
}
"""The fields of which a column is made, if it is not one of ``_SHORT`` and ``_LONG``."""


class Fields:
    """Fields of rows: those that the Arrow columns ``names`` are made of, an array for each one."""

    def __init__(self, room: int, names: Collection[str], rows: Rows | None = None) -> None:
        """Get memory for ``room`` rows, which a kernel fills; or use ``rows``, and only copy what columns hold."""
        self.count, self._rows = 0, rows
        self._shorts = [name for name in _SHORT if name in names]
        self._numbers = [name for name in _LONG if name in names]
        self._factors = np.array([_FACTORS.get(name, 1) for name in self._numbers], np.int64).reshape(-1, 1)
        needed = [field for name in names for field in _NEEDED.get(name, ())] if rows is None else []
        self._longs = list(dict.fromkeys([*(_LONG[name] for name in self._numbers), *needed]))
        self._fields = np.array([*(_SHORT[name] for name in self._shorts), *self._longs], np.int64)
        self._long = array(len(self._longs) * (room + _APART), np.int64).reshape(-1, room + _APART)
        self.begin(room)

    @classmethod
    def of(cls, rows: Rows, names: Collection[str]) -> Fields:
        """Return the fields of ``rows``."""
        made = cls(len(rows), names, rows)
        record.take_numbers(np.ascontiguousarray(rows), *made.places)
        made.count = len(rows)
        return made

    def begin(self, room: int) -> None:
        """Get memory for other rows, not more than before. Columns that were made stay as they are."""
        self.count = 0
        self._short = array(len(self._shorts) * (room + 2 * _APART), np.int32).reshape(-1, room + 2 * _APART)

    @property
    def places(self) -> tuple[Array, Array, Array]:
        """Arguments of the kernels that fill the fields: their numbers in a row, memory for those of 32 and 64 bits."""
        return self._fields, self._short, self._long

    def __getitem__(self, field: int) -> Rows:
        """Return a field of 64 bits of all rows. Another batch of rows may overwrite it."""
        if self._rows is not None:
            return self._rows[:, field]
        return cast("Rows", self._long[self._longs.index(field), : self.count])

    def columns(self) -> dict[str, Array]:
        """Return the columns that are one field, times in microseconds. Other rows do not overwrite them."""
        made = array(len(self._numbers) * self.count, np.int64).reshape(len(self._numbers), self.count)
        np.multiply(self._long[: len(made), : self.count], self._factors, out=made)
        return dict(zip([*self._shorts, *self._numbers], [*self._short[:, : self.count], *made], strict=True))


class _PropertyTexts(NamedTuple):
    """Names and values of the properties of all rows, see ``kernels.columns.property_texts``."""

    offsets: Array
    name_ends: Array
    names: Array
    value_ends: Array
    values: Array


class Columns:
    """Columns of some rows. The positions in ``fields`` are indexes into ``data``.

    ``store`` and ``body`` are the values of these options of the Spark source.
    """

    def __init__(self, data: bytes | memoryview, fields: Fields, store: str, body: str) -> None:
        self._data, self._fields, self._store, self._body = data, fields, store, body
        self._count, self._numbers = fields.count, fields.columns()

    def make(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the column ``name``, for which ``fields`` was made, as type ``kind``."""
        pa = pyarrow()
        if name in self._numbers:
            return pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(self._numbers[name])])
        if name in _HOSTS:
            return self._hosts(*_HOSTS[name])
        if name == "body" and self._body == "none":
            return pa.nulls(self._count, kind)
        if name == "body" and self._body == "decoded":
            return self._decoded(kind)
        if name in _PARTS:
            places = self._places(_PARTS[name])
            return gather(self._data, *places) if kind == pa.binary() else _texts(*_gathered(self._data, *places))
        match name:
            case "store":
                label = self._store.encode()
                offsets = np.arange(self._count + 1, dtype=np.int32) * np.int32(len(label))
                return _column(pa.string(), offsets, np.frombuffer(label * self._count, np.uint8))
            case "damaged":
                return pa.nulls(self._count, kind)
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

    def _places(self, part: tuple[int, int]) -> tuple[Rows, Rows]:
        at, length = part
        return self._fields[at], self._fields[length]

    @cached_property
    def _properties(self) -> _PropertyTexts:
        at, length = self._places(_PROPERTIES)
        total = int(length.sum())
        room = (total + self._count) // 4  # a property has at least four bytes, the last one three
        names, values = array(total), array(total)
        offsets, name_ends, value_ends = (array(n + 1, np.int32) for n in (self._count, room, room))
        count = columns.property_texts(self._data, at, length, offsets, name_ends, names, value_ends, values)
        assert count >= 0
        return _PropertyTexts(offsets, name_ends[: count + 1], names, value_ends[: count + 1], values)

    def _property_map(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        made = self._properties
        try:
            names = _utf8(made.name_ends, made.names)
        except pa.ArrowInvalid:  # names that are not UTF-8 may become equal: decode them one by one
            return pa.array(
                [list(decode_properties(part).items()) for part in self._slices(_PROPERTIES)], kind)
        values = _texts(made.value_ends, made.values)
        pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(made.offsets)], children=[pairs])

    def _keys(self, kind: pa.DataType) -> pa.Array:
        pa = pyarrow()
        at, length = self._places(_KEYS)
        total = int(length.sum())
        out, room = array(total), (total + self._count) // 2  # a key and its space have two bytes; the last has none
        offsets, ends = array(self._count + 1, np.int32), array(room + 1, np.int32)
        count = columns.key_texts(self._data, at, length, offsets, ends, out)
        assert count >= 0
        keys = _texts(ends[: count + 1], out)
        return pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(offsets)], children=[keys])

    def _hosts(self, at: int, v6: int) -> pa.Array:
        places, flags = self._fields[at], self._fields[C.SYS_FLAG]
        offsets, out = array(self._count + 1, np.int32), array(self._count * columns.HOST_BYTES)
        if columns.host_texts(self._data, places, flags, v6, offsets, out) >= 0:
            return _column(pyarrow().string(), offsets, out)
        texts = []
        for place, flag in zip(places.tolist(), flags.tolist(), strict=True):
            ip, port = unpack_host(bytes(self._data[place : place + (20 if flag & v6 else 8)]))
            texts.append(f"{ip}:{port}")
        return pyarrow().array(texts, pyarrow().string())

    def _message_ids(self) -> pa.Array:
        offsets, out = array(self._count + 1, np.int32), array(self._count * columns.ID_BYTES)
        at, flags, places = (self._fields[field] for field in _NEEDED["msgId"])
        columns.message_ids(self._data, at, flags, places, offsets, out)
        return _column(pyarrow().string(), offsets, out)

    def _deliver_times(self, kind: pa.DataType) -> pa.Array:
        made = self._properties
        times, valid = array(self._count, np.int64), array((self._count + 7) // 8)
        missing = columns.deliver_times(*made, times, valid)
        times *= _MICROS
        return pyarrow().Array.from_buffers(
            kind, self._count, [pyarrow().py_buffer(valid) if missing else None, pyarrow().py_buffer(times)])

    def _slices(self, part: tuple[int, int]) -> list[bytes]:
        at, length = self._places(part)
        return [bytes(self._data[p : p + n]) for p, n in zip(at.tolist(), length.tolist(), strict=True)]

    def _decoded(self, kind: pa.DataType) -> pa.Array:
        flags = self._fields[C.SYS_FLAG]
        if not (flags & SysFlag.COMPRESSED).any():
            return gather(self._data, *self._places(_PARTS["body"]))
        places = self._fields[C.PHY].tolist()
        found = []
        for body, flag, place in zip(self._slices(_PARTS["body"]), flags.tolist(), places, strict=True):
            try:
                found.append(decompress_body(body, flag, MAX_BODY))
            except CorruptionError as error:
                raise CorruptionError(str(error), phy_offset=place) from error
        return pyarrow().array(found, kind)


def gather(data: bytes | memoryview, at: Rows, length: Rows) -> pa.Array:
    """Return a binary column of parts of the data. A part with a negative position is null and has length 0."""
    return _column(pyarrow().binary(), *_gathered(data, at, length))


def _gathered(data: bytes | memoryview, at: Rows, length: Rows) -> tuple[Array, Array, Array | None]:
    """Return offsets, bytes and, if a part is missing, validity of the column that ``gather`` returns."""
    count, total = len(at), int(length.sum())
    offsets, valid, out = array(count + 1, np.int32), array((count + 7) // 8), array(total)
    copied, missing = columns.copy_parts(data, at, length, offsets, valid, out)
    assert copied == total, f"{copied} bytes of {total}"
    return offsets, out, valid if missing else None


def _column(kind: pa.DataType, ends: Array, out: Array, valid: Array | None = None) -> pa.Array:
    """Return a column of texts or bytes, one after the other in ``out``."""
    pa = pyarrow()
    return pa.Array.from_buffers(
        kind, len(ends) - 1,
        [None if valid is None else pa.py_buffer(valid), pa.py_buffer(ends), pa.py_buffer(out[: ends[-1]])])


def _utf8(ends: Array, out: Array, valid: Array | None = None) -> pa.Array:
    """Return a column of texts. Raises ArrowInvalid for bytes that are not UTF-8."""
    pa = pyarrow()
    if out[: ends[-1]].max(initial=0) < _NOT_ASCII:  # the cast looks at each value by itself, which takes much longer
        return _column(pa.string(), ends, out, valid)
    return _column(pa.binary(), ends, out, valid).cast(pa.string())


def _texts(ends: Array, out: Array, valid: Array | None = None) -> pa.Array:
    """Return a column of texts. Bytes that are not UTF-8 are replaced by U+FFFD."""
    pa = pyarrow()
    try:
        return _utf8(ends, out, valid)
    except pa.ArrowInvalid:
        return pa.array(
            [None if part is None else part.decode("utf-8", "replace")
             for part in _column(pa.binary(), ends, out, valid).to_pylist()],
            pa.string())
