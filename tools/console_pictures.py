"""Take the pictures of the console that docs/how-to/operate/console.md shows, with the browser of tests/support."""

import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from console_days import Day, bad_day, consoled, damaged, good_day

from browser import Browser

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SIZE_MAX = 120_000
"""Bytes of a picture."""
GOOD = (
    ("console-overview", "", 1000, 850, False),
    ("console-message-on-a-phone", "message?topic=orders&queue=1&offset=3", 390, 844, True),
)
BAD = (
    ("console-lag", "groups/billing", 1000, 840, False),
    ("console-dead-letters", "messages?topic=%25DLQ%25shipping", 1000, 560, True),
    ("console-disk", "disk", 1000, 560, False),
)
DAMAGED = (("console-damage", "", 1000, 800, False),)


def take(browser: Browser, day: Day, where: str, pictures: Iterable[tuple[str, str, int, int, bool]]) -> None:
    """Take pictures: name, page, width, height, and whether in dark colours."""
    for name, page, width, height, dark in pictures:
        browser.look(width=width, height=height, dark=dark)
        assert browser.open(day.url + page) == []
        browser.evaluate(f"document.body.innerHTML = document.body.innerHTML.replaceAll('{where}', '/srv'); 0")
        path = FOLDER / f"{name}.png"
        browser.picture(path)
        size = path.stat().st_size
        assert size < SIZE_MAX, f"{path} has {size:,} bytes, more than {SIZE_MAX:,}"
        print(path)


def main() -> None:
    logging.disable(logging.CRITICAL)  # the bad day is one on purpose
    with tempfile.TemporaryDirectory() as where, Browser(Path(where) / "profile") as browser:
        with good_day(Path(where) / "good" / "store", seconds=20) as day:
            take(browser, day, f"{where}/good", GOOD)
        with bad_day(Path(where) / "bad" / "store") as day:
            take(browser, day, f"{where}/bad", BAD)
        store = Path(where) / "damaged" / "store"
        damaged(store)
        with consoled(store) as day:
            take(browser, day, f"{where}/damaged", DAMAGED)


if __name__ == "__main__":
    main()
