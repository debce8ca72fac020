"""The port through which metrics are read."""

from __future__ import annotations

from tailrace.metrics import METRICS
from tailrace.observe.exposition import MeasuredBroker


def test_a_source_of_a_metric_is_a_part_of_the_port_that_has_its_figures():
    parts = {*MeasuredBroker.__annotations__, *vars(MeasuredBroker)}
    sources = [metric.source.split(".") for metric in METRICS if metric.source.startswith("broker.")]
    assert len(sources) > 30
    assert [".".join(source) for source in sources if source[1] not in parts] == []
