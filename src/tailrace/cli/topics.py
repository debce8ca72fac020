"""``tailrace topic``: topics of a directory or of a running broker."""

import sys
from functools import partial
from typing import Annotated, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.admin import administer, ask, topic_or_nearest
from tailrace.cli.arguments import AsJson, Create, Every, Yes, confirm, key_values, usage
from tailrace.cli.contexts import Target, with_target
from tailrace.cli.output import (
    deleted_line,
    local_time,
    print_lines,
    print_table,
    show,
    show_listing,
    wants_table,
)
from tailrace.errors import RemotingCommandError, StoreError
from tailrace.spellings import time_ms

__all__ = ["create", "delete", "list_all", "milliseconds", "purge", "stats"]

Name = Annotated[str, typer.Argument(
    metavar="[STORE] TOPIC", help="A store directory, if no server is named, and the name of a topic.",
    autocompletion=completion.words_of_topics)]


def milliseconds(text: str, option: str = "--before") -> int:
    """Return a time of the command line in milliseconds since 1970."""
    try:
        return time_ms(text, option)
    except ValueError as error:
        raise usage(str(error)) from None


@with_target
def list_all(*, target: Target, every: Every = False, as_json: AsJson = False) -> None:
    """List topics with messages, size and lag.

    The lag is that of the group with the largest one. A size with ~ is an estimate from the last messages. A table
    leaves out topics of the system, retry topics and empty dead-letter topics, unless --all is given.

    Nothing in STORE changes.
    """
    from tailrace.cli.listings import topic_listing, topic_row  # noqa: PLC0415

    show_listing("topic", topic_listing(target), topic_row, every=every, as_json=as_json)


@with_target
def create(
    *, name: Name, target: Target,
    queues: Annotated[int, typer.Option(min=1, max=1024, help="Number of queues.")] = 4,
    attribute: Annotated[
        Optional[list[str]], typer.Option(metavar="NAME=VALUE", help="Attribute of the topic, "  # noqa: UP045
                                          "such as message.type=FIFO or reserve.time=48 (hours); may be repeated.")
    ] = None,
    create: Create = False, as_json: AsJson = False,
) -> None:
    """Create or change a topic.

    The number of its queues and its attributes are set.

    With --create a missing STORE is created.

    This command writes to STORE.
    """
    from tailrace.cli.store_admin import to_change  # noqa: PLC0415 - NumPy and the store
    from tailrace.node.topic_config import check_attribute, validate_topic  # noqa: PLC0415

    attributes = key_values(attribute or [], "--attribute")
    if reason := validate_topic(name):
        raise StoreError(reason)
    try:
        for one in attributes.items():
            check_attribute(*one)
    except ValueError as error:
        raise StoreError(str(error)) from None
    made, notes = administer(
        target, partial(to_change, create=create), lambda admin: admin.create_topic(name, queues, attributes))
    for note in notes:
        print(note, file=sys.stderr)
    show([made], as_json=as_json)


@with_target
def stats(*, name: Name, target: Target, as_json: AsJson = False) -> None:
    """Show offsets and messages of each queue.

    Nothing in STORE changes.
    """
    from tailrace.cli.store_admin import to_read  # noqa: PLC0415 - NumPy and the store

    try:
        found = administer(target, to_read, lambda admin: admin.topic_queues(name))
    except RemotingCommandError as error:
        raise topic_or_nearest(target, name, error) from error
    lines = [{
        "topic": name, "brokerName": queue.broker_name, "queueId": queue.queue_id, "minOffset": queue.min_offset,
        "maxOffset": queue.max_offset, "messages": queue.max_offset - queue.min_offset,
        "lastUpdateTimestamp": queue.last_update_timestamp,
        "lastUpdateTime": local_time(queue.last_update_timestamp) if queue.last_update_timestamp > 0 else "",
    } for queue in found]
    if wants_table(as_json=as_json):
        several = len({queue.broker_name for queue in found}) > 1
        print_table([
            {"broker": line["brokerName"] if several else "", "queue": line["queueId"], "messages": line["messages"],
             "first": line["minOffset"], "end": line["maxOffset"], "lastUpdateTimestamp": line["lastUpdateTimestamp"]}
            for line in lines], f"{name} has no queue with a message")
    else:
        print_lines(lines)


@with_target
def delete(*, name: Name, target: Target, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a topic with its queues.

    The records stay in the log until their files are deleted, but no command or broker shows them again. Everything
    that belongs to the topic is deleted with it: offsets of groups, POP retries, and Lite topics. The output names the
    topics that were deleted as well, and what is kept.

    This command writes to STORE.
    """
    from tailrace.cli.store_admin import to_change  # noqa: PLC0415 - NumPy and the store

    confirm(f"delete topic {name} and its messages", yes=yes)
    try:
        done = administer(target, to_change, lambda admin: admin.delete_topic(name))
    except RemotingCommandError as error:
        raise topic_or_nearest(target, name, error) from error
    show([deleted_line(name, done)], as_json=as_json)


@with_target
def purge(
    *, name: Name, target: Target,
    queue: Annotated[Optional[int], typer.Option(min=0, help="Only this queue.")] = None,  # noqa: UP045
    before: Annotated[
        str, typer.Option(metavar="TIME", help="Only messages that were stored before: 2026-01-31T12:00 or "
                          "milliseconds since 1970.")] = "",
    yes: Yes = False, as_json: AsJson = False,
) -> None:
    """Remove the messages of a topic.

    This is final: no consumer receives them again. Prints a line for each queue, with its least offset before and
    after. The bytes are freed when their files are deleted, which `tailrace retention` shows. A Java broker that
    opens the directory shows purged messages again, as long as their files exist.

    This command writes to STORE.
    """
    from tailrace.cli.store_admin import to_change  # noqa: PLC0415 - NumPy and the store

    before_ms = milliseconds(before) if before else None
    if target.namesrv and len(brokers := ask(target, lambda admin: admin.brokers())) != 1:
        raise usage(f"{target.namesrv} has {len(brokers)} brokers: name one with --broker")
    confirm(f"remove the messages of topic {name}{'' if queue is None else f', queue {queue}'}"
            f"{f', before {before}' if before else ''}", yes=yes)
    done = administer(target, to_change, lambda admin: admin.purge_topic(name, queue, before_ms))
    show(({"topic": name, "queueId": queue_id, "from": low, "to": high, "purged": high - low}
          for queue_id, (low, high) in sorted(done.items())), as_json=as_json, empty=f"{name} has no queue")
