"""Take the pictures of the console that docs/how-to/operate/console.md shows, with the browser of tests/support."""

import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from patience import until

from browser import Browser
from tailrace import Message, Producer, PushConsumer
from tailrace.pytest_plugin import TailraceBroker

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SECONDS = 20


def fill(broker: TailraceBroker) -> None:
    """Send and consume for some seconds, so that the charts have a line."""
    seen = []
    with (
        Producer(namesrv=broker.namesrv, group="shop") as producer,
        PushConsumer("stock", lambda message: seen.append(message), namesrv=broker.namesrv, topics="orders",
                     start="first"),
    ):
        producer.create_topic("orders", 2)
        sent, began = 0, time.monotonic()
        while time.monotonic() - began < SECONDS:
            for _ in range(sent % 17 + 3):
                producer.send(Message(topic="orders", body=b'{"order": %d, "fruit": "apples"}' % sent,
                                      keys=[f"order-{sent}"], tags="fruit"))
                sent += 1
            time.sleep(0.05)
        producer.send(Message(topic="orders", body=b"remind me", keys=["reminder"], delay=3600.0))
        until(lambda: len(seen) >= sent)


def main() -> None:
    with tempfile.TemporaryDirectory() as where:
        broker = TailraceBroker(Path(where) / "store", "--http", "127.0.0.1:0")
        broker.start()
        fill(broker)
        found = re.search(r"^http=(\S+)$", broker.log, re.MULTILINE)
        assert found is not None
        console = f"http://{found[1]}/console/"
        with Browser(Path(where) / "profile") as browser:
            for name, page, width, height, dark in (
                ("console-overview", "", 1100, 1100, False),
                ("console-messages", "messages?topic=orders", 1100, 700, True),
                ("console-topic-on-a-phone", "topics/orders", 390, 700, False),
            ):
                browser.look(width=width, height=height, dark=dark)
                assert browser.open(console + page) == []
                browser.evaluate(f"document.body.innerHTML = document.body.innerHTML.replaceAll('{where}', '/srv'); 0")
                browser.picture(FOLDER / f"{name}.png")
                print(FOLDER / f"{name}.png")
        broker.stop()


if __name__ == "__main__":
    main()
