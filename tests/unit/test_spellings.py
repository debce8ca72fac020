"""Durations, times and names as people write them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tailrace.spellings import duration_ms, meant, milliseconds, nearest, no_such, time_ms


@pytest.mark.parametrize(("value", "ms"), [
    (5, 5_000), (0.25, 250), (0, 0), ("500ms", 500), ("5s", 5_000), ("10m", 600_000), ("1h30m", 5_400_000),
    ("1h 30m", 5_400_000), ("2d", 172_800_000), (" 1.5s ", 1_500), (timedelta(minutes=1), 60_000),
])
def test_a_duration_is_seconds_a_timedelta_or_a_text_with_units(value: Any, ms: int) -> None:
    assert duration_ms(value) == ms


@pytest.mark.parametrize(("value", "said"), [
    ("5", "delay '5' has no unit; write 5s or 5ms"),
    ("5 apples", "delay '5 apples' is not a duration; write 500ms, 5s, 10m, 1h30m or 2d"),
    ("", "is not a duration"), ("-5s", "is not a duration"), (-1, "is not a duration from 0 on"),
    (float("nan"), "is not a duration from 0 on"), (float("inf"), "is not a duration from 0 on"),
    (True, "delay True is not a duration; give seconds, a timedelta or a text such as 5s"), (None, "give seconds"),
    ("999999999999999999d", "is not a duration from 0 on"), ("٥s", "is not a duration"),
])
def test_another_duration_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"^delay") as refused:
        duration_ms(value, "delay")
    assert said in str(refused.value)


@pytest.mark.parametrize(("value", "ms"), [
    (1_700_000_000_000, 1_700_000_000_000), ("1700000000000", 1_700_000_000_000),
    ("2023-11-14T22:13:20Z", 1_700_000_000_000), ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000),
])
def test_a_time_is_milliseconds_or_iso_8601(value: Any, ms: int) -> None:
    assert time_ms(value) == ms


def test_a_time_without_a_zone_is_of_this_machine() -> None:
    assert time_ms("2026-01-31T12:00") == datetime(2026, 1, 31, 12).astimezone().timestamp() * 1000


@pytest.mark.parametrize(
    "value", ["yesterday", "", "-5", -1, 1.5, True, None, 1 << 64, "2026-13-01", "1969-12-31T00:00Z"])
def test_another_time_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^--before .* is not a time; write 2026-01-31T12:00 or milliseconds since"):
        time_ms(value, "--before")


def test_the_most_similar_name_is_suggested() -> None:
    assert meant("ordres", ["orders", "bills"]) == "; is orders meant?"
    assert meant("ordres", ["bills"]) == ""
    assert nearest("ordres", ["bills", "orders"]) == "orders"
    assert nearest("ordres", ["bills"]) == ""


@pytest.mark.parametrize(("value", "ms"), [(5, 5), (0.25, 0.25), (0, 0), ("5s", 5000), (timedelta(minutes=1), 60_000)])
def test_a_number_of_milliseconds_is_kept(value: Any, ms: float) -> None:
    assert milliseconds(value) == ms


@pytest.mark.parametrize("value", [-1, True, None, float("nan"), float("inf"), b"5s", []])
def test_what_is_no_number_of_milliseconds_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^wait=.* is not a duration: give ms, a timedelta or a text such as '5s'$"):
        milliseconds(value, "wait")


def test_a_name_that_is_not_there_comes_with_the_nearest_or_with_all() -> None:
    assert no_such("topic", "ordres", ["orders", "x"], "s") == "s has no topic ordres; is orders meant?"
    assert no_such("topic", "q", ["b", "a"], "s") == "s has no topic q; it has a, b"
    assert no_such("topic", "q", [], "s") == "s has no topic q"
    assert no_such("topic", "q", [f"name{n}" for n in range(10)], "s") == "s has no topic q"
