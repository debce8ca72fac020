"""``tailrace topic purge``: let go of the messages of a topic."""

from datetime import datetime
from typing import Annotated, Optional

import typer

from tailrace.cli.app import Broker, errors, one_target, print_lines, topic_app, usage
from tailrace.config import whole_number

__all__ = ["purge"]


def _milliseconds(text: str) -> int:
    """A time of this machine's zone, or milliseconds since 1970."""
    if (number := whole_number(text)) is not None:
        return number
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise usage(f"--before {text!r} is neither 2026-01-31T12:00 nor milliseconds since 1970") from None


@topic_app.command()
def purge(
    words: Annotated[list[str], typer.Argument(metavar="[STORE] TOPIC")],
    broker: Broker = "",
    queue: Annotated[Optional[int], typer.Option(min=0, help="This queue alone.")] = None,  # noqa: UP045
    before: Annotated[
        str, typer.Option(metavar="TIME", help="Only what was stored before; 2026-01-31T12:00 or "
                          "milliseconds since 1970.")] = "",
) -> None:
    """Let go of the messages of a topic.

    For good: nobody gets them from here any more. A JSON line for each queue with its least offset
    before and now. The bytes go with their files, when no topic needs a message of them: see
    retention. A Java broker that opens the directory shows purged messages again, as long as their
    files are there.
    """
    from tailrace.cli.messages import purge_topic  # noqa: PLC0415

    *directory, name = words
    store = one_target(directory, broker, "")
    before_ms = _milliseconds(before) if before else None
    with errors():
        done = purge_topic(name, store, broker, queue, before_ms)
    print_lines(
        {"topic": name, "queueId": queue_id, "from": low, "to": high, "purged": high - low}
        for queue_id, (low, high) in sorted(done.items()))
