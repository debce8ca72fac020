"""The example that draws: what goes into a picture, and the picture itself where matplotlib is there."""

import importlib.util
import pathlib
import struct
from datetime import UTC, datetime, timedelta

import pytest

PATH = pathlib.Path(__file__).parents[4] / "docs" / "examples" / "plot_store.py"
START = datetime(2026, 11, 20, 7, tzinfo=UTC)


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("plot_store", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(topics):
    hours = [START + timedelta(hours=n) for n in range(5) if n != 2]  # nothing in the third
    return {f"t{n:02d}": (hours, [n + 1.0] * len(hours)) for n in range(topics)}


def test_topics_beyond_the_ninth_are_one_column(example):
    assert list(example.columns_of(lines(9))) == [f"t{n:02d}" for n in reversed(range(9))]
    found = example.columns_of(lines(12))
    assert list(found)[-1] == "4 others"
    assert len(found) == 9
    assert found["4 others"][START] == 1 + 2 + 3 + 4
    assert sum(sum(one.values()) for one in found.values()) == 4 * sum(range(1, 13))


def test_pictures_are_drawn(example, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: see requirements/plot.txt")
    from matplotlib.image import imread

    inked = []
    for name, what in (("messages", lines(12)), ("bytes", lines(2)), ("timers", {})):
        file = tmp_path / f"{name}.png"
        example.draw(name, what, file)
        data = file.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24]) == (800, 320)
        colours = imread(file)[:, :, :3]
        inked.append(float((colours.max(axis=2) - colours.min(axis=2) > 0.2).mean()))
    assert inked[0] > 0.2, "bars fill a good part of the picture"
    assert inked[1] > 0.2
    assert inked[2] < 0.01, "and there are none when there are no timers"
