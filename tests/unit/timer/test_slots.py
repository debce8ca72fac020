"""Requests to delete timers, which are kept for a while."""

from tailrace.timer import slots
from tailrace.timer.properties import Identity
from tailrace.timer.slots import DueQueue

START = 1_700_000_000_000


def test_requests_to_delete_are_forgotten_oldest_first_above_their_bound():
    due = DueQueue()
    most = slots._MOST_DELETES
    named = [Identity("T", f"K{number}", START + number // 2) for number in range(most + 3)]
    for one in named:
        due.delete(one)
        due.delete(one)  # a second request of the same timer takes no room
    assert [due.is_deleted(one) for one in (*named[:4], named[-1])] == [False, False, False, True, True]
    assert sum(due.is_deleted(one) for one in named) == most
    assert not due.has_named({START}), "both requests of this moment are forgotten"
    assert due.has_named({START + 1})
