"""``tailrace timers``: what a directory is still to deliver."""

import sys
from collections import Counter
from typing import Annotated

import typer

from tailrace.cli.app import Config, Store, app, errors, print_lines, read_properties
from tailrace.config import StoreConfig

__all__ = ["timers"]


@app.command()
def timers(
    store: Store,
    summary: Annotated[bool, typer.Option("--summary", help="A count for each topic.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
    config: Config = None,
) -> None:
    """List pending timers by due time.

    Nothing is changed.
    """
    from tailrace.doctor.timers import pending_timers  # noqa: PLC0415 - NumPy and kernels
    from tailrace.store.directory import StoreDirectory  # noqa: PLC0415

    with errors():
        found = pending_timers(StoreDirectory(
            str(store), config=StoreConfig.from_properties(read_properties(config))))
    if summary:
        counts = Counter(timer.topic for timer in found)
        first = {timer.topic: timer.due_ms for timer in reversed(found)}
        print_lines(
            {"topic": topic, "pending": count, "nextDueMs": first[topic]}
            for topic, count in sorted(counts.items()))
    elif as_json or not sys.stdout.isatty():
        print_lines(timer.line() for timer in found)
    else:
        print(f"{'due':>15} {'topic':32} {'queue':>5} {'rounds':>6} key")
        for timer in found:
            print(f"{timer.due_ms:15} {timer.topic:32} {timer.queue_id:5} {timer.roll:6} "
                  f"{timer.uniq_key}")
