"""The pictures of an example day: what they show is what the store has, and every run draws those of docs/pictures."""

import importlib.util
import pathlib
from xml.etree import ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytest.importorskip("matplotlib", reason="matplotlib is not installed: see requirements/plot.txt")
pytestmark = [pytest.mark.long, pytest.mark.slow]  # make docs draws them, too
PATH = pathlib.Path(__file__).parents[2] / "tools" / "draw_examples.py"
TEXTS = {
    "example-day.svg": {"orders", "clicks", "mails", "Lag of the consumer of orders, in messages"},
    "example-retention.svg": {"archive, deleted from the log", "log and archive", "log: the file is not sealed"},
    "example-timers.svg": {"reminders", "invoices", "Pending timers by the hour they are due, by topic"}}


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("draw_examples", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_three_pictures_are_drawn_from_a_store_as_they_are_in_the_documents(tool, monkeypatch):
    shown = {}
    bars = tool._bars

    def seen(axes, parts):
        shown.update(parts)
        bars(axes, parts)

    monkeypatch.setattr(tool, "_bars", seen)
    first = dict(tool.pictures())
    assert first == {name: (PATH.parents[1] / "docs/pictures" / name).read_text() for name in first}, "run make gen"
    for name, content in first.items():
        shapes = ET.fromstring(content).iter("{http://www.w3.org/2000/svg}text")
        texts = {one.text.strip() for one in shapes if one.text}
        assert texts >= TEXTS[name], name
    assert first.keys() == TEXTS.keys()
    days = sum(shown[name].sum() for name in ("orders", "clicks", "mails"))
    assert days == sum(
        tool._rate(step, *peak) for step in range(tool.STEPS) for peak in ((13, 14), (20, 22), (7, 6)))
    gone, both, log = (shown[name] for name in ("archive, deleted from the log", "log and archive",
                                               "log: the file is not sealed"))
    assert gone.sum() > 0
    assert both.sum() > 0
    assert np.flatnonzero(gone).max() <= np.flatnonzero(both).min() <= np.flatnonzero(both).max() <= (
        np.flatnonzero(log).min())
    for topic in ("reminders", "invoices"):
        assert list(shown[topic]) == [dict(tool.timers(hour))[topic] for hour in range(24)]
