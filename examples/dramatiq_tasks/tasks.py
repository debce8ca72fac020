"""Tasks of Dramatiq on Tailrace: send them with `python tasks.py`, run them with `dramatiq tasks`."""

import os

import dramatiq

from tailrace_dramatiq import DramatiqBroker

broker = DramatiqBroker(namesrv=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=3, min_backoff=1_000)
def resize(picture: str, width: int) -> None:
    print(f"resized {picture} to {width}", flush=True)


@dramatiq.actor(queue_name="mails", time_limit=60_000)
def remind(customer: str) -> None:
    print(f"reminded {customer}", flush=True)


if __name__ == "__main__":
    resize.send("apple.png", 640)
    remind.send_with_options(args=("Ann",), delay=2_000)  # in 2 s
    broker.close()
    print("sent")
