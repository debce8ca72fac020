"""Commands on a directory: a look changes nothing, and beside a server a message that is acknowledged is found."""

from __future__ import annotations

import shutil

import pytest
from command_lists import snapshot
from crashed_directories import of_java
from served_process import served_process

pytestmark = [pytest.mark.slow, pytest.mark.integration]
LATE = {"flushCommitLogThoroughInterval": 3_600_000, "flushCommitLogLeastPages": 100_000}
"""The log is synced only on request."""


def test_the_directory_of_a_killed_broker_is_looked_at_and_stays_as_it_is(shell, tmp_path):
    store = of_java(tmp_path / "evidence")
    before = snapshot(store)
    assert "fx_t0" in shell.run("tailrace topic list evidence")
    shown = shell.run("tailrace topic stats evidence fx_t0")
    assert "not closed cleanly; it is shown as recovery would leave it" in " ".join(shown.split())
    assert "fx_t0" in shell.run("tailrace tail evidence --topic fx_t0 --from first --max 1 --no-follow; echo fx_t0")
    assert snapshot(store) == before


def test_query_finds_what_was_acknowledged_a_moment_before_or_says_that_it_cannot(shell, tmp_path):
    query = "tailrace query store --topic orders --key {} --body; echo rc=$?"
    with served_process(tmp_path, LATE):
        assert "SEND_OK" in shell.run("tailrace send store apples --topic orders --key lag1")
        shown = shell.run(query.format("lag1"))
        assert "apples" in shown
        assert "rc=0" in shown
        assert "SEND_OK" in shell.run("tailrace send store pears --topic orders --key lag2")
        shell.run("mv store/tailrace/serve.json away.json")  # the server cannot be found
        shown = " ".join(shell.run(query.format("lag2")).split())
        assert " s behind process " in shown
        assert "no message of orders has the key lag2 up to there" in shown
        assert "rc=1" in shown
        shutil.move(tmp_path / "away.json", tmp_path / "store" / "tailrace" / "serve.json")
        assert "rc=0" in shell.run(query.format("lag2"))
