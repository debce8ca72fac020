"""A slave sees a timer checkpoint only when it has the log up to it."""

from tailrace.formats.timercheckpoint import TimerCheckpointFields
from tailrace.ha.timer_positions import TimerPositions


def fields(read_time):
    return TimerCheckpointFields(read_time, 0, 1, 1, 0, 0, 1)


def test_a_checkpoint_is_shown_when_every_slave_has_its_log():
    now = {"written": None, "end": 0}
    positions = TimerPositions(lambda: now["written"], lambda: now["end"])
    assert positions.shown(0) is None
    now.update(written=fields(1000), end=100)
    positions.note()
    now["end"] = 150  # put after the checkpoint was noted
    assert positions.shown(99) is None
    assert positions.shown(None) is None
    assert positions.shown(100) == fields(1000)
    now.update(written=fields(2000), end=200)
    positions.note()
    now.update(written=fields(3000), end=300)
    positions.note()
    assert positions.shown(199) == fields(1000)
    assert positions.shown(250) == fields(2000)
    assert positions.shown(None) == fields(2000)
    assert positions.shown(300) == fields(3000)
    assert positions.shown(299) is None, "another slave has connected, which has less"
    assert positions.shown(300) == fields(3000)


def test_many_checkpoints_of_a_slow_slave_are_not_all_kept():
    now = {"written": None, "end": 0}
    positions = TimerPositions(lambda: now["written"], lambda: now["end"])
    for number in range(5000):
        now.update(written=fields(number), end=number)
        positions.note()
    assert len(positions._kept) <= 1000
    assert positions.shown(900) == fields(900)
    assert positions.shown(4999) == fields(4999)
