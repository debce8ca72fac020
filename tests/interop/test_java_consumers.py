"""The reference's consumers, those that pull and those that are pushed to, against `tailrace serve`."""

from __future__ import annotations

import pytest
from java_peer import COUNT, said_by

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


def test_the_pull_consumers_of_the_reference_work(reference, tailrace_session_broker):
    said = said_by(reference, "pull-clients", tailrace_session_broker, "pulled")
    numbers = [str(n) for n in range(COUNT)]
    assert said == {
        "queues": ["4"], "end": ["true"] * 8, "illegal": ["OFFSET_ILLEGAL"] * 4,
        "by-time": ["true"] * 4, "max": [str(COUNT)], "min": ["0"],
        "all": [f"[{', '.join(numbers)}]"], "odd": [f"[{', '.join(numbers[1::2])}]"],
        "committed": ["true"], "by-id": ["true"], "by-key": ["1"], "waits": ["true"],
        "woken": ["FOUND [-1]"], "woken-in-time": ["true"],
        "lite-even": [f"[{', '.join(numbers[::2])}]"], "lite-committed": [str(COUNT // 2)],
        "lite-assigned": ["4"], "assign-all": [str(COUNT + 1)], "assign-seek": ["1"],
        "done": ["true"],
    }


def test_push_consumers_share_queues_at_once_and_take_over_and_keep_order(reference, tailrace_session_broker):
    names = ("shared", "all", "apart", "takes-over", "alone", "ordered-all", "ordered", "done")
    assert said_by(reference, "push-clients", tailrace_session_broker, "pushed") == {
        name: ["true"] for name in names}


@pytest.mark.long
def test_push_consumers_whose_queues_the_broker_allocates_get_every_message(reference, tailrace_session_broker):
    names = ("shared", "apart", "all", "retried", "takes-over", "done")
    assert said_by(reference, "assigned-clients", tailrace_session_broker, "assigned") == {
        name: ["true"] for name in names}


@pytest.mark.long
def test_push_consumers_in_mode_pop_get_every_message_once_and_what_failed_again(reference, tailrace_session_broker):
    names = ("started", "all", "retried", "once", "takes-over", "done")
    assert said_by(reference, "pop-clients", tailrace_session_broker, "popped") == {name: ["true"] for name in names}
