"""Plain batches, and messages whose key the broker makes, have in the send lane the results of the ordinary path."""

from __future__ import annotations

import pytest
from lane_world import (
    ITEMS,
    VALUES,
    bare,
    batch,
    batch_borders,
    counts_of,
    differences,
    item,
    joined,
    opened,
    send,
)

from tailrace import kernels
from tailrace.config import FlushDiskType
from tailrace.errors import DiskFullError
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import decode_frame
from tailrace.segments import MappedFile

pytestmark = pytest.mark.skipif(not kernels.compiled(), reason="without compiled kernels there is no lane")
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
SMALL = {"mapped_file_size_commit_log": 1 << 16}


def batches(count, **more):
    return b"".join(batch(changes={"queueId": str(n % 3)}, binary=n % 2 == 0, code=(310, 320)[n // 2 % 2], opaque=n,
                          **more) for n in range(count))


def answered(data):
    found, at = [], 0
    while at < len(data):
        command, at = decode_frame(data, at, len(data))
        found.append(command)
    return found


def records(log):
    at = 0
    while at < len(log):
        end = at + int.from_bytes(log[at : at + 4], "big")
        yield decode_message(log[at:end])
        at = end


@pytest.mark.parametrize("store_config", [{}, SYNC, {"enabled_append_prop_crc": True}], ids=str)
def test_plain_batches_take_the_lane_after_the_first_send(tmp_path, store_config):
    outcome, found = differences(tmp_path, [send(), batches(100), batches(1)[:-1]], store_config=store_config)
    assert not found, "\n".join(found)
    assert outcome.in_lane == 100
    stored = list(records(outcome.log))[1:]
    assert [(one.flag, one.body, one.properties["TAGS"]) for one in stored[:3]] == [
        (flag, body, f"t{flag}") for flag, body, _ in ITEMS]
    assert [one.queue_offset for one in stored if one.queue_id == 2] == list(range(99))
    ids = ",".join(command.ext["msgId"] for command in answered(outcome.answers[1]))
    assert ids.split(",") == [one.msg_id for one in stored]
    assert [int(command.ext["queueOffset"]) for command in answered(outcome.answers[1])[:6]] == [0, 1, 0, 3, 4, 3]


def test_batches_and_other_sends_share_a_chunk(tmp_path):
    chunk = batches(2) + send() + batches(1, flag=2) + batch(changes={"topic": "Other"}) + batches(3) + send()
    outcome, found = differences(tmp_path, [send(), chunk, chunk])
    assert not found, "\n".join(found)
    assert outcome.in_lane == 17, "all but the first send to each topic"
    assert len(answered(outcome.answers[2])) == 8, "one has no answer"


def test_batches_at_the_borders_of_plain_are_served_as_ever_by_small_files_with_checksums(tmp_path):
    frames = batch_borders()  # test_send_lane.py has them with other settings
    outcome, found = differences(tmp_path, [send(), *frames, *joined(frames[:-3], 20, 1)], store_config={
        **SMALL, "enabled_append_prop_crc": True})
    assert not found, "\n".join(found[:5])
    assert outcome.in_lane > 200


@pytest.mark.parametrize("crc", [False, True])
def test_a_batch_that_does_not_fit_the_last_file_is_all_in_the_next_one(tmp_path, crc):
    chunks = [batch([item(body=b"x" * n)] * 7, opaque=n) * 3 for n in range(1_000, 1_090, 7)]
    outcome, found = differences(
        tmp_path, [send(), *chunks], store_config={**SMALL, "enabled_append_prop_crc": crc})
    assert not found, "\n".join(found)
    assert 30 < outcome.in_lane < 39, "the ordinary path starts the next file"


def test_a_put_that_finds_no_room_is_refused_and_counted_once_for_each_batch(tmp_path, monkeypatch):
    def no_room(file, until):
        raise DiskFullError(file.path, "the test has no room")

    found = []
    for lane in (False, True):
        with opened(tmp_path / str(lane), lane=lane, store_config={"commit_log_allocate_step": 4096}) as world:
            world.exchange(send() + send())
            with monkeypatch.context() as patch:
                patch.setattr(MappedFile, "reserve", no_room)
                full = world.exchange(batches(30))
            after = world.exchange(batches(30))
            found.append(([one.code for one in answered(full)], after, counts_of(world.store, world.traffic)))
    assert found[0] == found[1]
    assert (found[1][0][0], found[1][0][-1]) == (0, 1), "some find room, the others get SYSTEM_ERROR"
    assert {one.code for one in answered(found[1][1])} == {0}


def test_a_call_takes_no_more_messages_than_it_has_positions_for(tmp_path):
    outcome, found = differences(tmp_path, [send(), batch([item()] * 500) * 5, batch([item()] * 1_025)])
    assert not found, "\n".join(found)
    assert outcome.in_lane == 5


def test_keys_that_the_broker_makes_go_on_where_the_other_path_ended(tmp_path):
    keyless = send({"properties": "TAGS\x01t\x02"})
    odd = send({"properties": "TAGS\x01t"})
    chunk = keyless * 3 + send() + odd + keyless * 2 + send({"queueId": "-1"}) + keyless
    outcome, found = differences(tmp_path, [send(), chunk, keyless * 70])
    assert not found, "\n".join(found)
    assert outcome.in_lane == 77
    keys = [one.properties["UNIQ_KEY"] for one in records(outcome.log)]
    assert len(set(keys)) == len(keys) - 2, "three sends have the same key of their client"
    assert answered(outcome.answers[1])[1].ext["transactionId"] == keys[2]


def test_whole_numbers_and_booleans_of_json_count_as_texts(tmp_path):
    fields = "bornTimestamp", "batch", "queueId"
    _, found = differences(tmp_path / "both", [send(), *(bare(name, value) for name in fields for value in VALUES)])
    assert not found, "\n".join(found)
    taken = {name: set() for name in fields}
    with opened(tmp_path / "lane") as world:
        world.exchange(send())
        for name in fields:
            for value in VALUES:
                before = world.in_lane
                world.exchange(bare(name, value))
                if world.in_lane > before:
                    taken[name].add(value)
    numbers = {b"0", b"1", b"3", b"2147483647", b"2147483648", b"999999999999999999"}
    assert taken == {"bornTimestamp": numbers, "batch": {b"false"}, "queueId": {b"0", b"1", b"3"}}
