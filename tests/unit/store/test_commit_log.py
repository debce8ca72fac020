"""Checks of a put, and the state of the log after a put is refused or fails."""

from __future__ import annotations

import errno

import pytest

from tailrace import MessageStore, StoreConfig
from tailrace.errors import DiskFullError, MessageIllegalError
from tailrace.formats.commitlog import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    SysFlag,
    decode_message,
    encode_batch,
)
from tailrace.model import Message, MessageExtBrokerInner, PutMessageStatus
from tailrace.node.store_opening import StoreParts
from tailrace.testing import CrashFileSystem, SimClock

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, max_hash_slot_num=16,
    max_index_num=64, commit_log_allocate_step=4096, max_message_size=6000)
ILLEGAL = PutMessageStatus.MESSAGE_ILLEGAL
TOO_LONG = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED


@pytest.fixture
def files():
    return CrashFileSystem()


@pytest.fixture
def store(files):
    with MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=SimClock())
    ) as store:
        yield store


def inner(**fields):
    return MessageExtBrokerInner(**{"topic": "t", "queue_id": 0, "body": b"x", **fields})


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"body": bytes(6001)}, ILLEGAL, "maxMessageSize allows 6000"),
        ({"body": bytes(6000), "properties": b"p\x01" + b"v" * 3000 + b"\x02"}, ILLEGAL, "8192"),
        ({"properties": b"p\x01" + b"v" * 32800 + b"\x02"}, TOO_LONG, "32767"),
        ({"topic": "t" * 128}, ILLEGAL, "127"),
        ({"topic": "%RETRY%" + "g" * 249}, ILLEGAL, "255"),
        ({"topic": "../t"}, ILLEGAL, "letters"),
        ({"topic": "t\n"}, ILLEGAL, "letters"),
        ({"topic": ""}, ILLEGAL, "letters"),
        ({"topic": "\ud800"}, ILLEGAL, "letters"),
        ({"queue_id": -1}, ILLEGAL, "queueId"),
        ({"queue_id": 1 << 31}, ILLEGAL, "queueId"),
        ({"body": None}, ILLEGAL, "body"),
        ({"body": "text"}, ILLEGAL, "body"),
        ({"flag": 1 << 31}, ILLEGAL, "flag"),
    ],
)
def test_a_refusal_names_the_thing_and_its_limit_and_writes_nothing(store, fields, status, named):
    result = store.put_inner(inner(**fields))
    assert (result.status, result.phy_offset, result.msg_num) == (status, -1, 0)
    assert named in result.remark
    assert store.max_phy_offset == 0
    assert store.put_inner(inner()).queue_offset == 0, "no queue offset is spent on a refusal"


def test_a_record_may_fill_a_file_but_for_the_blank(files):
    # 75 bytes of numbers, two IPv4 hosts and a topic of one byte; eight stay for the blank.
    most = 8192 - 8 - 75 - 16 - 1
    config = StoreConfig(
        mapped_file_size_commit_log=8192, commit_log_allocate_step=4096, max_index_num=64,
        max_hash_slot_num=16)
    with MessageStore.open(
        "/f", config=config, parts=StoreParts(services=False, file_system=files, clock=SimClock())
    ) as store:
        results = [store.put_inner(inner(body=bytes(size))) for size in (0, most, 0)]
        assert [r.phy_offset for r in results] == [0, 8192, 16384]
        refused = store.put_inner(inner(body=bytes(most + 1)))
        assert (refused.status, "8192" in refused.remark) == (ILLEGAL, True)


def test_a_record_that_does_not_fit_goes_to_the_next_file_after_a_blank_record(store, files):
    first = store.put_inner(inner(body=bytes(5000)))
    second = store.put_inner(inner(body=bytes(5000)))
    assert (first.phy_offset, second.phy_offset) == (0, 8192)
    blank = files.open("/s/commitlog/00000000000000000000").pread(8, first.until)
    assert blank == (8192 - first.until).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"


def test_long_topics_of_retries_are_version_two_records(store):
    assert decode_message(record_of(store, inner(topic="t" * 127))).topic == "t" * 127
    data = record_of(store, inner(topic="%RETRY%" + "g" * 200))
    assert int.from_bytes(data[4:8], "big") == MESSAGE_MAGIC_V2 != MESSAGE_MAGIC_V1
    assert decode_message(data).topic == "%RETRY%" + "g" * 200


def record_of(store, message):
    return store.select_record(store.put_inner(message).phy_offset)


def test_hosts_of_both_families_are_stored_and_named_by_the_flags(store):
    v6, v4 = bytes(15) + b"\1" + (9).to_bytes(4, "big"), b"\x0a\0\0\1" + (8).to_bytes(4, "big")
    found = decode_message(record_of(store, inner(born_host=v6)))
    assert (found.born_host, found.sys_flag & 0x30) == (("::1", 9), SysFlag.BORNHOST_V6)
    store.inner.store_host = v6
    found = decode_message(record_of(store, inner(born_host=v4)))
    assert (found.born_host, found.store_host) == (("10.0.0.1", 8), ("::1", 9))
    assert found.sys_flag & 0x30 == SysFlag.STOREHOST_V6
    assert len(found.msg_id) == 56
    assert store.look_message_by_id(found.msg_id).phy_offset == found.phy_offset


@pytest.mark.parametrize(
    ("flag", "offsets", "end"),
    [
        (SysFlag.TRANSACTION_PREPARED, [0, 0, 0], 1), (SysFlag.TRANSACTION_ROLLBACK, [0, 0, 0], 1),
        (SysFlag.TRANSACTION_COMMIT, [0, 1, 2], 3),
    ],
)
def test_only_messages_that_a_consumer_may_see_take_a_place_in_the_queue(store, flag, offsets, end):
    results = [store.put_inner(inner(sys_flag=flag)) for _ in range(2)]
    results.append(store.put_inner(inner()))
    assert [r.queue_offset for r in results] == offsets
    store.wait_dispatched()
    assert store.max_offset_in_queue("t", 0) == end


def test_a_batch_is_in_one_file_or_nowhere(store):
    store.put_inner(inner(body=bytes(4000)))
    result = store.inner.put_batch(
        inner(body=b""), encode_batch([(n, bytes(1400), b"k\x01v\x02") for n in range(4)]))
    assert (result.status, result.msg_num, result.phy_offset) == (PutMessageStatus.PUT_OK, 4, 8192)
    assert (result.queue_offset, len(result.phy_offsets)) == (1, 4)
    assert [m.flag for m in store.read("t")] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("encoded", "named"),
    [
        (b"", "no message"),
        (b"\0\0", "cut off"),
        (encode_batch([(0, b"x", b"")])[:-1], "cut off"),
        (b"\0\0\0\x7f" + encode_batch([(0, b"x", b"")])[4:], "add up"),
        (encode_batch([(0, bytes(3000), b"")] * 3), "maxMessageSize allows 6000"),
    ],
)
def test_a_batch_that_is_wrong_is_refused_as_a_whole(store, encoded, named):
    result = store.inner.put_batch(inner(body=b""), encoded)
    assert (result.status, result.msg_num) == (ILLEGAL, 0)
    assert named in result.remark
    assert store.max_phy_offset == 0


@pytest.mark.parametrize("bad", ["text", None, 7])
def test_a_wrong_item_among_many_leaves_no_bytes_in_the_log(store, files, bad):
    good = Message(topic="t", body=b"good", tags="a", keys=["k"])
    with pytest.raises(MessageIllegalError, match="body"):
        store.put_many([good, good, Message(topic="t", body=bad, tags="a", keys=["k"])])
    names = files.list("/s/commitlog")
    data = b"".join(files.open(f"/s/commitlog/{n}").pread(8192, 0) for n in names)
    assert data.count(0) == len(data), "records that were never put"


def test_an_error_inside_the_encoder_leaves_no_bytes_in_the_log(store, files):
    store.put_inner(inner(body=b"kept"))
    end = store.max_phy_offset
    items = [(0, b"one", b""), (0, b"two", b""), (0, b"three", "no bytes")]
    with pytest.raises(TypeError):
        store.inner.append(store.inner.commit_log.items_writer(inner(), items))
    log = files.open("/s/commitlog/00000000000000000000").pread(8192, 0)
    assert log[end:].count(0) == len(log) - end
    assert store.put_inner(inner()).queue_offset == 1


def test_every_record_can_carry_a_checksum_of_itself(files):
    config = StoreConfig(
        mapped_file_size_commit_log=8192, enabled_append_prop_crc=True, max_hash_slot_num=16,
        max_index_num=64, commit_log_allocate_step=4096)
    with MessageStore.open(
        "/c", config=config, parts=StoreParts(services=False, file_system=files, clock=SimClock())
    ) as store:
        store.put(Message(topic="t", body=b"1", tags="a"))
        store.put_many([Message(topic="t", body=b"2", tags="a", keys=["k"])] * 2)
        digits = [m.properties["__CRC32#"] for m in store.read("t")]
    assert len(digits) == 3
    assert all(len(d) == 10 and d.isdigit() for d in digits)


def test_store_timestamps_never_step_back(files):
    """L4: look-ups by time search on store times, and recovery tells a stale record by them."""
    clock = SimClock()

    def opened():
        return MessageStore.open(
            "/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=clock))

    with opened() as store:
        first = store.put_inner(inner()).store_timestamp
        clock.step_wall(-3_600_000)
        second = store.put_inner(inner()).store_timestamp
    with opened() as store:
        third = store.put_inner(inner()).store_timestamp
        clock.step_wall(3_600_000 + 5)
        fourth = store.put_inner(inner()).store_timestamp
        assert store.wait_dispatched()
        times = [m.store_timestamp for m in store.read("t", 0)]
    assert times == [first, second, third, fourth]
    assert first == second == third < fourth


def test_nothing_is_stored_in_blocks_that_were_not_allocated(files):
    """M3: a store into a hole of a mapped file on a full disk ends the process."""
    with MessageStore.open(
        "/s", config=CONFIG, parts=StoreParts(services=False, file_system=files, clock=SimClock())
    ) as store:
        assert store.put_inner(inner(body=bytes(500))).status.appended

        def full(_number, operation, _path):
            if operation == "allocate":
                raise OSError(errno.ENOSPC, "No space left on device")

        files.before = full
        results = [store.put_inner(inner(body=bytes(500))) for _ in range(12)]
        files.before = None
        taken = [r for r in results if r.status is PutMessageStatus.PUT_OK]
        assert len(taken) == 5, "as many as the first 4096 bytes hold with the blank record"
        assert results[-1].status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        assert store.max_phy_offset <= CONFIG.commit_log_allocate_step


def test_a_stored_message_can_be_copied_after_max_message_size_was_lowered(store):
    """A retry that is refused would stop the queue of its consumer."""
    body = bytes(6001)
    assert store.put_inner(inner(body=body)).status is ILLEGAL
    assert store.put_inner(inner(body=body, is_copy=True)).status is PutMessageStatus.PUT_OK
    assert store.put_inner(inner(body=bytes(9000), is_copy=True)).status is ILLEGAL  # over a segment


def test_a_file_that_is_ended_early_gives_its_blocks_back_even_if_there_is_no_room_for_the_next_one(store, files):
    store.put_inner(inner())
    log = store.inner.commit_log
    file, full, freed = log.queue.files[-1], [True], []

    def before(_number, name, path):
        if name == "create" and full[0]:
            raise OSError(errno.ENOSPC, "injected", path)
        if name == "punch_hole":
            freed.append(path)

    files.before = before
    with pytest.raises(DiskFullError):
        log.roll(file)
    assert freed == [file.path]
    full[0] = False
    assert log.roll(file)
    assert log.queue.files[-1] is not file
    assert freed == [file.path]
    assert store.put_inner(inner()).ok
