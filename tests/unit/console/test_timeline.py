"""Messages of a topic in the order of the log, page by page, whatever their queues have and lack."""

from __future__ import annotations

import bisect
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.console.timeline import Place, Timeline


class Queues:
    """A store of queues, each a sorted list of messages (offset, position, time); offsets may have gaps."""

    def __init__(self, queues):
        self.queues = queues
        self.reads = 0

    def queue_of(self, topic, queue_id):
        return SimpleNamespace(
            min=self.min(topic, queue_id), max=self.max(topic, queue_id), next=self.max(topic, queue_id),
            by_time=lambda time_ms: self.by_time(topic, queue_id, time_ms),
            read=lambda offset, **more: self.read(topic, queue_id, offset, **more))

    def min(self, topic, queue_id):
        del topic
        return self.queues[queue_id][0].queue_offset if self.queues[queue_id] else 0

    def max(self, topic, queue_id):
        del topic
        return self.queues[queue_id][-1].queue_offset + 1 if self.queues[queue_id] else 0

    def by_time(self, topic, queue_id, time_ms):
        found = self.queues[queue_id]
        at = bisect.bisect_left([one.store_timestamp for one in found], time_ms)
        return found[at].queue_offset if at < len(found) else self.max(topic, queue_id)

    def read(self, topic, queue_id, offset, *, max_count):
        assert (topic, max_count) == ("orders", 1)
        self.reads += 1
        found = self.queues[queue_id]
        at = bisect.bisect_left([one.queue_offset for one in found], offset)
        yield from found[at : at + 1]


@st.composite
def stores(draw):
    """Queues of messages whose positions ascend in the log, with gaps and equal times."""
    number = draw(st.integers(1, 4))
    queues, position, time, offsets = [[] for _ in range(number)], 0, 1_000, [0] * number
    for queue_id, gap, step in draw(st.lists(st.tuples(
            st.integers(0, number - 1), st.sampled_from([0, 0, 0, 1, 5, 100]), st.sampled_from([0, 0, 1, 50])),
            max_size=60)):
        position, time = position + 100, time + step
        offsets[queue_id] += gap
        queues[queue_id].append(SimpleNamespace(
            phy_offset=position, queue_offset=offsets[queue_id], queue_id=queue_id, store_timestamp=time))
        offsets[queue_id] += 1
    return Queues(queues)


def timeline(store):
    return Timeline(store, "orders", range(len(store.queues)), lambda one, at: (one.queue_id, at))


def in_order(store):
    return [(one.queue_id, one.queue_offset)
            for one in sorted((one for queue in store.queues for one in queue), key=lambda one: one.phy_offset)]


@settings(max_examples=150, deadline=None)
@given(stores(), st.integers(1, 7))
def test_older_and_newer_pages_show_every_message_once_in_order(store, size):
    shown, expected = timeline(store), in_order(store)
    page, back = shown.newest(size), []
    while page:
        back += page
        page = shown.before(page[-1][0], size)
    assert [one for _, one in back] == expected[::-1]
    on = back[-1:]
    while page := shown.after(on[-1][0], size) if on else []:
        on += page
    assert [one for _, one in on] == expected


@settings(max_examples=60, deadline=None)
@given(stores(), st.integers(990, 1_500))
def test_a_time_and_an_offset_begin_where_they_say(store, time):
    shown = timeline(store)
    by_time = {(one.queue_id, one.queue_offset) for queue in store.queues for one in queue
               if one.store_timestamp >= time}
    assert {one for _, one in shown.from_time(time, 1_000)} == by_time
    assert [one for _, one in shown.from_offset(3, 1_000)] == [one for one in in_order(store) if one[1] >= 3]


def test_a_page_in_the_middle_of_a_large_topic_needs_few_reads():
    queues = [[SimpleNamespace(phy_offset=(n * 4 + q) * 100, queue_offset=n, queue_id=q, store_timestamp=n // 50)
               for n in range(20_000)] for q in range(4)]
    store = Queues(queues)
    page = timeline(store).before(Place(200, 4_000_000, 10_000), 50)
    assert [one for _, one in page][:3] == [(3, 9_999), (2, 9_999), (1, 9_999)]
    assert store.reads < 50 + 4 * 20


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.3.4", "a.b.c", "-1.2.3", "1.2.99999999999999999999", "१.2.3"])
def test_a_place_that_is_none_is_named(text):
    with pytest.raises(ValueError, match=r"^after is "):
        Place.parse(text, "after")


def test_a_place_is_read_as_it_was_written():
    assert Place.parse(str(Place(1, 2, 3)), "after") == Place(1, 2, 3)
