"""The batch reader: plans on the driver, reads a range of the log in each task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace.formats.commitlog import (
    SysFlag,
    create_message_id,
    decode_properties,
    decompress_body,
    unpack_host,
)
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.kernels import record
from tailrace.spark.options import ReadOptions
from tailrace.spark.planning import plan_splits
from tailrace.spark.schema import COLUMN_NAMES, arrow_schema
from tailrace.store.directory import QueueView, StoreDirectory
from tailrace.store.log_scan import LogChunk, LogEnd, scan_files

__all__ = ["LogRange", "TailraceBatchReader"]

_CHECK: Final = record.CHECK_BODY_CRC | record.CHECK_PHY_OFFSET | record.CHECK_PROP_CRC
_MAX_BODY: Final = 64 << 20
Positions = np.ndarray[Any, np.dtype[np.int64]]


class LogRange(InputPartition):
    """Records that start in [start, end) of the log."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class TailraceBatchReader(DataSourceReader):
    """Rows for every record that a queue unit confirms and that the options ask for."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def _directory(self) -> StoreDirectory:
        return StoreDirectory(self._options.path, config=self._options.store_config())

    def _positions(self, directory: StoreDirectory) -> Positions:
        """Positions of all records that are wanted, sorted."""
        options = self._options
        parts = [np.empty(0, dtype=np.int64)]
        for queue in directory.queues():
            if not options.wants(queue.topic):
                continue
            if options.queue_id >= 0 and queue.queue_id != options.queue_id:
                continue
            units = self._units(queue)
            keep = (units["size"] != PRE_BLANK_SIZE) & (units["phy_offset"] >= directory.min_phy_offset)
            parts.append(units["phy_offset"][keep].astype(np.int64))
        found: Positions = np.unique(np.concatenate(parts))
        low, high = options.starting_commit_log_offset, options.ending_commit_log_offset
        return found[(found >= low) & (found < high)]

    def _units(self, queue: QueueView) -> Any:
        options = self._options
        units = queue.all_units()
        start = options.starting_offsets.get(queue.topic, {}).get(str(queue.queue_id), 0)
        end = options.ending_offsets.get(queue.topic, {}).get(str(queue.queue_id), queue.max_offset)
        first = max(start - queue.min_offset, 0)
        return units[first : max(end - queue.min_offset, first)]

    def partitions(self) -> list[InputPartition]:
        """Ranges of the log; an empty list becomes one partition None, which reads nothing."""
        directory = self._directory()
        positions = self._positions(directory)
        splits = plan_splits(
            positions, directory.max_phy_offset, self._options.split_bytes,
            self._options.min_partitions)
        return [LogRange(start, end) for start, end in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range, at most a chunk of the log each."""
        if not isinstance(partition, LogRange):
            return
        directory = self._directory()
        positions = self._positions(directory)
        low, high = np.searchsorted(positions, [partition.start, partition.end])
        positions = positions[low:high]
        start = partition.start
        while len(positions):
            end = LogEnd()
            for chunk in scan_files(directory.log_files, start, partition.end, _CHECK, end):
                batch = self._batch(chunk, positions)
                if batch is not None:
                    yield batch
            # A damaged record is not a row; go on at the next one that a queue names.
            following = positions[np.searchsorted(positions, end.phy_offset, side="right") :]
            if end.phy_offset >= partition.end or not len(following):
                return
            start = int(following[0])

    def _batch(self, chunk: LogChunk, positions: Positions) -> pa.RecordBatch | None:
        rows = chunk.rows
        place = np.searchsorted(positions, rows[:, record.C_PHY])
        place[place == len(positions)] = 0
        times = rows[:, record.C_STORE_TIMESTAMP]
        keep = (
            (positions[place] == rows[:, record.C_PHY])
            & (times >= self._options.starting_timestamp)
            & (times < self._options.ending_timestamp)
        )
        chosen = rows[keep]
        if not len(chosen):
            return None
        schema = arrow_schema(self._options.columns)
        columns = _Columns(chunk.data, chosen, self._options)
        return pa.RecordBatch.from_arrays(
            [columns.make(name, schema.field(name).type) for name in schema.names], schema=schema)


_NUMBERS: Final = {
    "queueId": record.C_QUEUE_ID, "queueOffset": record.C_QUEUE_OFFSET,
    "commitLogOffset": record.C_PHY, "storeSize": record.C_SIZE, "flag": record.C_FLAG,
    "sysFlag": record.C_SYS_FLAG, "bodyCRC": record.C_BODY_CRC,
    "reconsumeTimes": record.C_RECONSUME_TIMES, "preparedTransactionOffset": record.C_PREPARED,
}
_TIMES: Final = {
    "bornTimestamp": record.C_BORN_TIMESTAMP, "storeTimestamp": record.C_STORE_TIMESTAMP,
}
_PARTS: Final = {
    "topic": (record.C_TOPIC_POS, record.C_TOPIC_LEN),
    "tags": (record.C_TAGS_POS, record.C_TAGS_LEN),
    "uniqKey": (record.C_UNIQ_POS, record.C_UNIQ_LEN),
    "body": (record.C_BODY_POS, record.C_BODY_LEN),
}


class _Columns:
    """Arrow columns from record rows."""

    def __init__(self, data: bytes, rows: Positions, options: ReadOptions) -> None:
        self._data = data
        self._rows = rows
        self._options = options

    def make(self, name: str, kind: pa.DataType) -> pa.Array:
        """The column of that name."""
        assert name in COLUMN_NAMES
        rows = self._rows
        if name in _NUMBERS:
            return pa.array(rows[:, _NUMBERS[name]]).cast(kind)
        if name in _TIMES:
            return pa.array(rows[:, _TIMES[name]] * 1000).cast(kind)
        if name == "store":
            return pa.array([self._options.store] * len(rows), kind)
        if name == "body" and self._options.body != "stored":
            return self._bodies(kind)
        if name in _PARTS:
            return self._gather(*_PARTS[name], kind)
        return pa.array(getattr(self, f"_{name}")(), kind)

    def _gather(self, at: int, length: int, kind: pa.DataType) -> pa.Array:
        """Slices of the data, end to end, without an object for each."""
        starts, lengths = self._rows[:, at], self._rows[:, length]
        missing = starts < 0
        offsets = np.zeros(len(starts) + 1, dtype=np.int32)
        np.cumsum(np.where(missing, 0, lengths), out=offsets[1:])
        data = self._data
        joined = b"".join(
            [data[p : p + n] for p, n in zip(starts.tolist(), lengths.tolist(), strict=True) if p >= 0])
        mask = None
        if missing.any():
            mask = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes())
        made = pa.Array.from_buffers(
            pa.binary(), len(starts), [mask, pa.py_buffer(offsets.tobytes()), pa.py_buffer(joined)])
        return made if kind == pa.binary() else _text(made)

    def _slices(self, at: int, length: int) -> list[bytes]:
        data = self._data
        return [
            data[p : p + n]
            for p, n in zip(self._rows[:, at].tolist(), self._rows[:, length].tolist(), strict=True)
        ]

    def _bodies(self, kind: pa.DataType) -> pa.Array:
        if self._options.body == "none":
            return pa.nulls(len(self._rows), kind)
        flags = self._rows[:, record.C_SYS_FLAG].tolist()
        bodies = self._slices(record.C_BODY_POS, record.C_BODY_LEN)
        return pa.array(
            [
                decompress_body(body, flag, _MAX_BODY) if flag & SysFlag.COMPRESSED else body
                for body, flag in zip(bodies, flags, strict=True)
            ], kind)

    def _properties(self) -> list[list[tuple[str, str]]]:
        return [
            list(decode_properties(part).items())
            for part in self._slices(record.C_PROPS_POS, record.C_PROPS_LEN)
        ]

    def _keys(self) -> list[list[str]]:
        return [
            part.decode("utf-8", "replace").split() if at >= 0 else []
            for part, at in zip(
                self._slices(record.C_KEYS_POS, record.C_KEYS_LEN),
                self._rows[:, record.C_KEYS_POS].tolist(), strict=True)
        ]

    def _hosts(self, at: int, bit: int) -> list[bytes]:
        data = self._data
        return [
            data[p : p + (20 if flag & bit else 8)]
            for p, flag in zip(
                self._rows[:, at].tolist(), self._rows[:, record.C_SYS_FLAG].tolist(), strict=True)
        ]

    def _bornHost(self) -> list[str]:  # noqa: N802 - the column's name
        return [_host(raw) for raw in self._hosts(record.C_BORN_HOST_POS, SysFlag.BORNHOST_V6)]

    def _storeHost(self) -> list[str]:  # noqa: N802
        return [_host(raw) for raw in self._hosts(record.C_STORE_HOST_POS, SysFlag.STOREHOST_V6)]

    def _msgId(self) -> list[str]:  # noqa: N802
        hosts = self._hosts(record.C_STORE_HOST_POS, SysFlag.STOREHOST_V6)
        return [
            create_message_id(raw, position)
            for raw, position in zip(hosts, self._rows[:, record.C_PHY].tolist(), strict=True)
        ]

    def _deliverAt(self) -> list[int | None]:  # noqa: N802
        found: list[int | None] = []
        for part in self._slices(record.C_PROPS_POS, record.C_PROPS_LEN):
            value = None
            if b"TIMER_" in part:
                properties = decode_properties(part)
                text = properties.get("TIMER_DELIVER_MS") or properties.get("TIMER_OUT_MS") or ""
                value = int(text) * 1000 if text.isdigit() and len(text) < 16 else None
            found.append(value)
        return found


def _host(raw: bytes) -> str:
    ip, port = unpack_host(raw)
    return f"{ip}:{port}"


def _text(made: pa.Array) -> pa.Array:
    try:
        return made.cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are not UTF-8: show them as best we can
        return pa.array(
            [None if part is None else part.decode("utf-8", "replace") for part in made.to_pylist()],
            pa.string())
