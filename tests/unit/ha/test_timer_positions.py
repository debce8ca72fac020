"""A slave sees a timer checkpoint only when it has the log up to it."""

from tailrace.formats.timercheckpoint import TimerCheckpointFields
from tailrace.ha.timer_positions import TimerPositions


def fields(read_time):
    return TimerCheckpointFields(read_time, 0, 1, 1, 0, 0, 1)


def made():
    now = {"written": None, "end": 0}
    return now, TimerPositions(lambda: now["written"], lambda: now["end"])


def test_a_checkpoint_is_shown_to_a_slave_that_has_its_log():
    now, positions = made()
    assert positions.shown(0, 0) is None
    now.update(written=fields(1000), end=100)
    positions.note()
    now["end"] = 150  # put after the checkpoint was noted
    assert positions.shown(99, 99) is None
    assert positions.shown(100, 100) == fields(1000)
    now.update(written=fields(2000), end=200)
    positions.note()
    now.update(written=fields(3000), end=300)
    positions.note()
    assert positions.shown(199, 199) == fields(1000)
    assert positions.shown(250, 199) == fields(2000)
    assert positions.shown(300, 199) == fields(3000)
    assert positions.shown(199, 199) == fields(1000), "a slave that has less than another one"
    assert positions.shown(300, 300) == fields(3000)
    assert positions.shown(299, 299) is None, "one that connects later, which has less than all others had"
    assert positions.shown(300, 299) == fields(3000)


def test_a_slave_of_which_nothing_is_known_gets_none():
    """Its HA connection is down, so the checkpoint may be ahead of its log (H19)."""
    now, positions = made()
    now.update(written=fields(1000), end=100)
    assert positions.shown(100, 100) == fields(1000)
    assert positions.shown(None, 100) is None
    assert positions.shown(None, None) is None


def test_many_checkpoints_of_a_slow_slave_are_not_all_kept():
    now, positions = made()
    for number in range(5000):
        now.update(written=fields(number), end=number)
        positions.note()
    assert len(positions._kept) <= 1000
    assert positions.shown(900, 900) == fields(900)
    assert positions.shown(4999, 4999) == fields(4999)
    assert len(positions._kept) == 1
