"""The table of metrics names its sources."""

from tailrace.metrics import METRICS
from tailrace.node.message_store import MessageStore


def test_every_statistic_that_a_metric_names_is_one_of_the_store(tmp_path):
    with MessageStore.open(tmp_path / "store") as store:
        known = store.stats()
    named = {metric.source for metric in METRICS if metric.source and "." not in metric.source}
    assert len(named) > 20
    # Only with an archive; their metrics are 0 without one.
    assert named - known.keys() == {
        "archiveLagBytes", "archiveLagSeconds", "tableCommits", "tableCommitRetries", "tableCommitConflicts"}
