"""A pull over damaged messages goes on behind what it returned."""

import pytest

from tailrace import Message, MessageStore
from tailrace.formats.commitlog import decode_message
from tailrace.store.commit_log import CommitLog


def damage(log: CommitLog, phy_offset: int) -> None:
    file = log.queue.find(phy_offset)
    at = phy_offset - file.file_from_offset + 90
    file.buffer[at] ^= 0xFF


@pytest.mark.parametrize("damaged", [(3,), (0, 1, 2), (5, 6, 7, 20), tuple(range(9, 19)), (39,)])
def test_no_message_is_pulled_twice_and_none_is_left_out(tmp_path, damaged):
    with MessageStore.open(tmp_path, services=False) as store:
        puts = [store.put(Message(topic="T", body=b"%02d" % n * 8)) for n in range(40)]
        store.wait_dispatched()
        for number in damaged:
            damage(store._store.commit_log, puts[number].phy_offset)
        for most in (1, 7, 10, 32):
            found, at = [], 0
            while at < 40:
                result = store.get_message("T", 0, at, most)
                assert all(at <= offset < result.next_begin_offset for offset in result.queue_offsets)
                assert len(result.records) <= most
                found += [int(decode_message(data).body[:2]) for data in result.records]
                assert result.next_begin_offset > at
                at = result.next_begin_offset
            assert found == [n for n in range(40) if n not in damaged], most


def test_a_pull_whose_tag_nothing_has_goes_on_behind_what_it_looked_at(tmp_path):
    with MessageStore.open(tmp_path, services=False) as store:
        for n in range(5):
            store.put(Message(topic="T", body=b"%d" % n, tags="a"))
        store.wait_dispatched()
        assert store.get_message("T", 0, 1, 32, codes=[-1]).next_begin_offset == 5
