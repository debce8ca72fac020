"""A fixture for all tests: what a loop catches is seen."""

from collections import Counter

import pytest

from tailrace.env.supervision import FAILURES


@pytest.fixture(autouse=True)
def nothing_is_caught_silently(request):
    """A loop that continues after an error must not hide the error from a test that does not expect it."""
    before = Counter(FAILURES)
    yield
    if request.node.get_closest_marker("caught") is None:
        assert before == FAILURES, "a loop met an error; its traceback is in the log"
