"""Both twins of the appender and of table rows write the same bytes and count the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace import Message, kernels
from tailrace.errors import MessageIllegalError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.file_end import FileEnd
from tailrace.kernels.properties import message_properties
from tailrace.kernels.shared import constants as C
from tailrace.model import MessageExtBrokerInner, PutMessageStatus
from tailrace.store import append
from tailrace.store.running_flags import NOT_WRITEABLE, RunningFlags

FILE = 4096


TWINS = (interpreted("append", "store"), append)
CHECKS = (interpreted("record").check_batch, kernels.record.check_batch)
TABLES = (interpreted("table_records"), kernels.table_records)
PROPERTIES = (interpreted("properties"), kernels.properties)
needs_twins = pytest.mark.skipif(not kernels.compiled(), reason="no compiled kernels to compare with")
quick = settings(max_examples=80, deadline=None)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
words = st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1,
                max_size=8)
stored = st.lists(st.tuples(words, words), max_size=3).map(
    lambda pairs: "".join(f"{a}\x01{b}\x02" for a, b in pairs).encode())
hosts = st.sampled_from([bytes(8), b"\x01" * 20])
items = st.lists(
    st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=300), stored), min_size=1,
    max_size=12)
puts = st.lists(
    st.tuples(
        st.sampled_from(["one", "many", "whole", "batch"]), st.sampled_from(["T", "t" * 130]),
        st.integers(0, 1), st.sampled_from([0, 1, 4, 8, 12]), hosts, items),
    min_size=1, max_size=6)


class File(FileEnd):
    """A file in memory."""

    def __init__(self, start, calls):
        super().__init__(FILE)
        self.size, self.file_from_offset, self.buffer = FILE, start, memoryview(bytearray(FILE))
        self._calls = calls

    def reserve(self, until):
        return until

    def write_after(self, data, at):
        self._calls.append(len(data))
        self.buffer[at : at + len(data)] = data


class Log:
    """Files in memory, and an appender of one of the twins over them."""

    def __init__(self, module, *, crc, long_put=1 << 20, stage=1 << 20):
        self.files = ()
        self.calls = []
        self.module = module
        self.last_file(0)
        self.now, self.flags = 5, RunningFlags()
        self.tail = module.Appender(
            module.PutLock(), self.tick, self.tick, self.flags, self, self.roll, crc, 1000, long_put, stage)

    def tick(self):
        self.now = self.next_tick(self.now)
        return self.now

    @staticmethod
    def next_tick(now):
        return now + (3 if now % 2 else -1)

    def last_file(self, _):
        if not self.files or self.files[-1].wrote_position == FILE:
            self.files += (File(len(self.files) * FILE, self.calls),)
        return self.files[-1]

    def roll(self, file):
        file.wrote_position = FILE
        self.last_file(0)

    def writer(self, kind, topic, queue_id, sys_flag, host, entries):
        flag, body, properties = entries[0]
        message = MessageExtBrokerInner(
            topic, queue_id, body, properties, flag, sys_flag, 77, host, 3, 9)
        raw, bound = topic.encode(), sum(400 + len(b) + len(p) for _, b, p in entries)
        if kind == "one":
            return self.module.MessageWriter(message, raw, properties)
        if kind == "batch":
            encoded = encode_batch(entries)
            count, *_ = CHECKS[0](encoded)
            assert count == len(entries)
            assert CHECKS[1](encoded) == CHECKS[0](encoded)
            return self.module.BatchWriter(message, raw, encoded, count, min(bound, FILE - 8))
        return self.module.ItemsWriter(message, raw, entries, min(bound, 1 << 20))

    def state(self):
        return (
            [bytes(file.buffer) for file in self.files], [f.wrote_position for f in self.files],
            self.tail.queue_offsets, self.tail.last_store_timestamp)


def result_of(log, put):
    try:
        return log.tail.append(log.writer(*put))
    except (ValueError, TypeError) as error:
        return type(error)


@needs_twins
@quick
@given(puts, st.booleans())
def test_twins_append_the_same(puts, crc):
    one, other = (Log(module, crc=crc) for module in TWINS)
    for put in puts:
        entries = put[-1]
        if put[0] in ("batch", "whole") and sum(130 + 21 + len(put[1]) + 40 + len(b) + len(p)
                                                for _, b, p in entries) > FILE - 8:
            continue  # the log refuses what does not fit a file
        assert result_of(one, put) == result_of(other, put)
        assert one.state() == other.state()


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "imported"])
def test_some_records_fill_the_last_file_start_no_other_and_count_as_puts_of_their_own(module):
    log = Log(module, crc=True)
    put = "many", "T", 1, 0, bytes(8), [(n, b"%d" % n * 300, b"") for n in range(20)]
    first = log.tail.append_some(log.writer(*put))
    assert (first.status, first.msg_num, first.queue_offset) == (PutMessageStatus.PUT_OK, 9, 0)
    assert (log.files[0].wrote_position, len(log.files)) == (first.until, 1)
    again = log.tail.append_some(log.writer(*put))
    assert (again.status, again.msg_num, again.phy_offset) == (PutMessageStatus.PUT_OK, 0, -1)
    counts = log.tail.counts
    assert (counts.times, counts.failed_times, counts.size, sum(counts.distribution)) == (9, 0, first.until, 9)
    assert log.tail.append(log.writer(*put)).msg_num == 20  # the ordinary way starts the next file
    assert (len(log.files), log.tail.queue_offsets["T", 1]) == (4, 29)
    log.flags.set(NOT_WRITEABLE, "the test refuses writes")
    assert log.tail.append_some(log.writer(*put)).msg_num == 0
    assert counts.failed_times == 0


@quick
@given(puts, st.booleans(), st.integers(0, 400), st.integers(150, 1500))
def test_a_long_put_leaves_the_bytes_of_a_short_one(puts, crc, long_put, stage):
    """Even if a record is longer than the buffer, or the buffer is full before the file."""
    for module in TWINS if kernels.compiled() else TWINS[:1]:
        short, log = Log(module, crc=crc), Log(module, crc=crc, long_put=long_put, stage=stage)
        for put in puts:
            assert result_of(short, put) == result_of(log, put)
            assert short.state() == log.state()
        assert not short.calls
        assert max(log.calls, default=0) <= stage


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "imported"])
@pytest.mark.parametrize("call", range(5))
def test_records_of_a_call_that_fails_are_not_in_the_log(module, call):
    log = Log(module, crc=False, long_put=0, stage=600)
    file, entries = log.files[0], [(n, b"%d" % n * 200, b"") for n in range(8)]
    write = file.write_after

    def fails(data, at):
        if len(log.calls) == call:
            raise OSError(5, "the disk is broken")
        write(data, at)

    file.write_after = fails
    writer = log.writer("many", "T", 0, 0, bytes(8), entries)
    result = log.tail.append(writer)
    assert (result.status, "broken" in result.remark) == (
        (PutMessageStatus.CREATE_MAPPED_FILE_FAILED, True) if call < 4 else (PutMessageStatus.PUT_OK, False))
    assert log.tail.counts.failed_times == (call < 4)
    assert log.tail.counts.times == 2 * call
    assert result.msg_num == writer.done == len(result.phy_offsets) == 2 * call
    assert log.tail.queue_offsets.get(("T", 0), 0) == 2 * call
    assert not any(file.buffer[file.wrote_position :])


@quick
@given(st.sampled_from(["T", "U"]), st.binary(max_size=60), stored, st.integers(-1, 3))
def test_a_plain_message_is_one_that_needs_no_closer_look(topic, body, properties, queue_id):
    for module in {*TWINS} if kernels.compiled() else TWINS[:1]:
        log = Log(module, crc=False)
        log.tail.topics["T"] = b"T"
        found = log.tail.put(MessageExtBrokerInner(topic, queue_id, body, properties))
        if found is not None:
            assert topic == "T"
            assert queue_id >= 0
        assert bool(log.tail.counts.times) == (found is not None)


@pytest.mark.parametrize("name", [
    "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "DELAY",
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"])
@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "imported"])
def test_what_the_put_hook_or_multi_dispatch_look_at_is_not_plain(module, name):
    log = Log(module, crc=False)
    log.tail.topics["T"] = b"T"
    for before in (b"", b"TAGS\x01a\x02"):
        properties = before + name.encode() + b"\x01x\x02"
        message = MessageExtBrokerInner("T", 0, b"", properties)
        assert module.kind_of(message) == (C.LMQ if name.startswith("INNER") else C.WAITS)
        assert log.tail.put(message) is None
        assert log.tail.plain_writer(message) is None
        assert (log.tail.plain_writer(message, hooked=True) is None) == name.startswith("INNER")
    assert log.tail.plain_writer(MessageExtBrokerInner("T", 0, b"", b"TAGS\x01a\x02")) is not None
    assert log.tail.put(MessageExtBrokerInner("T", 0, b"", b"TAGS\x01a\x02")) is not None


@quick
@given(st.lists(st.tuples(
    st.sampled_from(["T", "t" * 130]), st.integers(0, 1), st.sampled_from([0, 4, 8, 12]), hosts,
    st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=900), st.sampled_from([b"", b"TAGS\x01a\x02"]),
    st.booleans()), min_size=1, max_size=12), st.booleans())
def test_a_plain_put_leaves_what_the_writer_of_a_checked_message_leaves(puts, crc):
    """In all three ways, and whatever was put before with the same writer."""
    logs = [Log(module, crc=crc) for module in (TWINS if kernels.compiled() else TWINS[:1]) for _ in range(2)]
    for log in logs:
        log.tail.topics.update({"T": b"T", "t" * 130: b"t" * 130})
    for topic, queue_id, sys_flag, host, flag, body, stored, in_parts in puts:
        found = []
        for number, log in enumerate(logs):
            by_itself = MessageExtBrokerInner(topic, queue_id, body, stored, flag, sys_flag, 77, host, 3, 9)
            if in_parts:
                by_itself = MessageExtBrokerInner(
                    topic, queue_id, body, stored, flag, 0, log.next_tick(log.next_tick(log.now)), log.tail.store_host)
            writer = log.module.MessageWriter(by_itself, topic.encode(), stored)
            found.append(
                log.tail.append(writer) if not number % 2
                else log.tail.put_parts(topic, queue_id, body, stored, flag) if in_parts else log.tail.put(by_itself))
        assert all(result == found[0] for result in found)
        assert all(log.state() == logs[0].state() for log in logs)


@pytest.mark.parametrize("module", TWINS, ids=["interpreted", "imported"])
def test_a_put_wakes_the_reader_that_waits_and_reports_a_refusal(module):
    log, woken, refused = Log(module, crc=False), [], []
    log.tail.topics["T"] = b"T"
    log.tail.wake, log.tail.refused = lambda: woken.append(log.files[0].wrote_position), refused.append
    message = MessageExtBrokerInner("T", 0, b"body", b"")
    assert log.tail.put(message).ok
    assert not woken
    log.tail.reader_waits = True
    assert log.tail.put(message).ok
    assert woken == [log.files[0].wrote_position]  # the record is there when the reader wakes
    assert log.tail.append_some(log.writer("many", "T", 1, 0, bytes(8), [(0, b"", b"")])).msg_num == 1
    assert len(woken) == 2
    log.flags.set(NOT_WRITEABLE, "the test refuses writes")
    for result in (log.tail.put(message), log.tail.put_parts("T", 0, b"", b"", 0)):
        assert (result.status, result.remark) == (
            PutMessageStatus.SERVICE_NOT_AVAILABLE, "the test refuses writes")
        assert refused.pop(0) is result
    assert len(woken) == 2
    assert log.tail.counts.failed_times == 2
    assert log.tail.put_parts("T", 0, bytearray(1), b"", 0) is None
    assert log.tail.put_parts("T", 0, b"", b"", 1 << 31) is None
    assert log.tail.put_parts("T", -1, b"", b"", 0) is None
    assert log.tail.put_parts("U", 0, b"", b"", 0) is None


@quick
@given(st.text(max_size=6) | st.none(), st.lists(texts, max_size=3), st.integers(0, 1 << 40))
def test_quick_properties_are_those_of_the_long_way(tags, keys, number):
    message = Message(topic="T", body=b"", tags=tags, keys=keys)
    unique = f"{'P' * 20}{number:012X}"
    for module in PROPERTIES:
        quickly = module.plain_properties(message, "P" * 20, number)
        try:
            expected = message_properties(message, unique)
        except MessageIllegalError:
            assert quickly is None
        else:
            assert quickly == expected


def joined_by(module, parts):
    lengths = np.array([len(part) for part in parts], np.int64)
    return module.Texts(np.cumsum(lengths) - lengths, lengths, b"".join(parts))


def columns_of(module, rows, *counter):
    def joined(parts):
        return joined_by(module, [part.encode() for part in parts])

    def runs(lists):
        counts = np.array([len(one) for one in lists], np.int64)
        return np.cumsum(counts) - counts, counts

    keys = [row[1] for row in rows]
    maps = [row[2] for row in rows]
    columns = module.PropertyColumns(
        len(rows), joined([row[0] for row in rows]),
        (*runs(keys), joined([key for one in keys for key in one])),
        (*runs(maps), joined([n for one in maps for n in one]),
         joined([v for one in maps for v in one.values()])),
        np.array([row[3] for row in rows], np.int64))
    out, ends, kinds = np.zeros(1 << 16, np.uint8), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint8)
    found = columns.encode(b"P" * 20, out, ends, kinds, *counter)
    done = found[0]
    return found, ends[:done].tolist(), kinds[:done].tolist(), bytes(out[: ends[done - 1] if done else 0])


names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TIMER_DELAY_MS", "INNER_MULTI_DISPATCH"])


@quick
@given(st.lists(st.tuples(
    texts, st.lists(texts, max_size=3), st.dictionaries(names | texts, texts, max_size=3),
    st.sampled_from([kernels.table_records.NO_TIME, 0, 5, 1 << 41])), min_size=1, max_size=5))
def test_properties_of_rows_are_those_of_messages(rows):
    one, other = (columns_of(module, rows) for module in TABLES)
    assert one == other
    (done, why), ends, kinds, data = one
    for n, (tags, keys, properties, time) in enumerate(rows[: done + (why != 0)]):
        message = Message(topic="T", body=b"")  # what a Message refuses when it is made is set afterwards
        message.tags, message.keys, message.properties = tags, keys, properties
        message.deliver_at = None if time == kernels.table_records.NO_TIME else time
        try:
            expected = message_properties(message, f"{'P' * 20}{n:012X}")
        except MessageIllegalError:
            assert n == done
            return
        assert n < done
        assert data[ends[n - 1] if n else 0 : ends[n]] == expected
        assert kinds[n] == kernels.properties.kind_and_key(expected)[0] & C.ALONE
    assert not why


@quick
@given(
    st.lists(st.dictionaries(words | st.just("n"), words, max_size=3), min_size=1, max_size=5), st.integers(0, 1 << 62))
def test_rows_get_a_counter_in_the_place_of_their_own(rows, number):
    rows = [("", [], {**row, **({"n": "v"} if place == 1 else {})}, 5) for place, row in enumerate(rows)]
    one, other = (columns_of(module, rows, b"n", b"a/", number) for module in TABLES)
    assert one == other
    (done, why), ends, _, data = one
    assert (done, why) == (len(rows), 0)
    for place, (_, _, properties, _) in enumerate(rows):
        message = Message(
            topic="T", body=b"", deliver_at=5,
            properties={**{name: properties[name] for name in properties if name != "n"}, "n": f"a/{number + place}"})
        assert data[ends[place - 1] if place else 0 : ends[place]] == message_properties(
            message, f"{'P' * 20}{place:012X}")


@quick
@given(st.lists(st.tuples(st.binary(max_size=300), stored), min_size=1, max_size=12), st.data())
def test_rows_of_columns_are_the_items_of_a_batch(rows, data):
    first = data.draw(st.integers(0, len(rows)))
    until = data.draw(st.integers(first, len(rows)))
    expected = encode_batch((0, *row) for row in rows[first:until])
    for module in TABLES:
        bodies, properties = (joined_by(module, column) for column in zip(*rows, strict=True))
        out = np.full(len(expected) + 1, 7, np.uint8)
        assert module.put_items(first, until, bodies, properties, out) == len(expected)
        assert out.tobytes() == expected + b"\x07"
        if expected:
            with pytest.raises(ValueError, match="for a buffer of"):
                module.put_items(first, until, bodies, properties, out[: len(expected) - 1])
        for wrong in ((-1, until), (until + 1, until), (first, len(rows) + 1)):
            with pytest.raises(ValueError, match="rows"):
                module.put_items(*wrong, bodies, properties, out)
        long = joined_by(module, [bytes(32_768)])
        with pytest.raises(ValueError, match="bytes of properties"):
            module.put_items(0, 1, bodies, long, np.zeros(40_000, np.uint8))


@pytest.mark.parametrize("module", TABLES, ids=["interpreted", "imported"])
def test_places_outside_an_array_are_refused(module):
    texts_ = module.Texts
    one = np.ones(1, np.int64)
    for starts, lengths, data in ((one * -1, one, b"ab"), (one, one * 2, b"ab"), (one, one * -1, b"ab"),
                                  (one, np.ones(2, np.int64), b"abc"), (one << 62, one << 62, b"ab")):
        with pytest.raises(ValueError, match=r"outside|lengths"):
            texts_(starts, lengths, data)
    text = texts_(one * 0, one, b"a")
    with pytest.raises(ValueError, match="outside its 1 texts"):
        module.PropertyColumns(1, None, (one, one, text), None, None)
    with pytest.raises(ValueError, match="2 rows"):
        module.PropertyColumns(2, text, None, None, None)
    with pytest.raises(IndexError):
        text.text(1)
