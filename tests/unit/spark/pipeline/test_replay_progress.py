"""The progress file of a replay, with rows that no session has read."""

import json

import pytest

pytest.importorskip("pyspark")
from tailrace.spark.pipeline import replay as replays

ROW = {
    "topic": "t", "body": b"x", "queueId": 0, "commitLogOffset": 5, "queueOffset": 0, "sysFlag": 0, "properties": {},
    "tags": None, "keys": [], "flag": 0, "storedMs": 7}


class Rows:
    def __init__(self, rows):
        self._rows = rows

    def selectExpr(self, *_):
        return self

    orderBy = selectExpr

    def toLocalIterator(self):
        return iter(self._rows)


class Target:
    def __init__(self):
        self.got = []

    def queues(self, topic):
        return 1

    def put(self, queue_id, messages):
        self.got += messages


@pytest.fixture
def run(monkeypatch):
    """Replay rows with a progress file."""
    def replay(rows, progress, target):
        monkeypatch.setattr(replays, "chosen_rows", lambda *_: Rows(rows))
        monkeypatch.setattr(replays, "_has_message", lambda *_: True)
        return replays.replay(None, replays.Replay(path="s", topics=("t",), progress=str(progress)), target)

    return replay


def test_a_file_that_cannot_be_written_is_an_error_before_the_first_message(run, tmp_path):
    target = Target()
    with pytest.raises(FileNotFoundError, match="gone"):
        run([ROW], tmp_path / "gone" / "p.json", target)
    assert not target.got


def test_a_run_without_messages_leaves_a_file_with_which_the_next_one_begins(run, tmp_path):
    target, progress = Target(), tmp_path / "p.json"
    assert run([], progress, target)["sent"] == 0
    assert json.loads(progress.read_text())["position"] == -1
    assert run([ROW], progress, target)["sent"] == 1
    assert run([], progress, target)["sentBefore"] == 1
    assert json.loads(progress.read_text())["last"] == [5, 7]
    assert len(target.got) == 1
