"""A slave of RocketMQ gets no offset of a message that it has not acknowledged (H16)."""

from __future__ import annotations

from ha_world import master, running

from tailrace.ha.offset_caps import OffsetCaps


@running
async def test_offsets_end_where_the_log_of_the_slave_ends(tmp_path):
    async with master(tmp_path) as one:
        ends = [one.put() for _ in range(5)]
        other = one.put(topic="other")
        one.store.wait_dispatched()
        for position, wanted in (
            (0, 0), (ends[0] - 1, 0), (ends[0], 1), (ends[2] + 5, 3), (ends[4], 5), (other, 5), (other + 9, 5),
        ):
            assert OffsetCaps(one.inner, position).capped("t", 0, 7) == wanted
        caps = OffsetCaps(one.inner, ends[2])
        assert caps.capped("t", 0, 2) == 2
        assert caps.capped("other", 0, 1) == 0
        assert caps.capped("empty", 0, 6) == 6, "a queue without messages in this log"
        table = {"offsetTable": {"t@g": {"0": 5}, "other@g": {"0": 1}}, "lmqOffsetTable": {"t@%LMQ%g": 4}}
        assert caps.apply(table) == {
            "offsetTable": {"t@g": {"0": 3}, "other@g": {"0": 0}}, "lmqOffsetTable": {"t@%LMQ%g": 3}}
