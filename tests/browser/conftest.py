"""A real browser; tests that need it are skipped where it cannot be had."""

import pytest

from browser import Browser, NoBrowserError, fetched


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    try:
        fetched()
    except NoBrowserError as error:
        pytest.skip(str(error))
    with Browser(tmp_path_factory.mktemp("profile")) as running:
        yield running
