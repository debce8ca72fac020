"""``tailrace topic``: topics of a directory or of a running broker."""

from typing import Annotated, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.admin import ask, topic_or_nearest
from tailrace.cli.arguments import (
    AsJson,
    Broker,
    Context,
    Create,
    Every,
    Namesrv,
    Tls,
    Where,
    Yes,
    confirm,
    errors,
    key_values,
    usage,
)
from tailrace.cli.contexts import target_of
from tailrace.cli.output import (
    deleted_line,
    local_time,
    print_lines,
    print_table,
    show,
    show_listing,
    wants_table,
)
from tailrace.errors import RemotingCommandError
from tailrace.spellings import time_ms

__all__ = ["create", "delete", "list_all", "milliseconds", "purge", "stats"]

Words = Annotated[list[str], typer.Argument(
    metavar="[STORE] TOPIC", help="A store directory, if no server is named, and the name of a topic.",
    autocompletion=completion.words_of_topics)]


def milliseconds(text: str, option: str = "--before") -> int:
    """Return a time of the command line in milliseconds since 1970."""
    try:
        return time_ms(text, option)
    except ValueError as error:
        raise usage(str(error)) from None


def list_all(
    store: Where = "", broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None,
    every: Every = False, as_json: AsJson = False,
) -> None:
    """List topics with messages, size and lag.

    The lag is that of the group with the largest one. A size with ~ is an estimate from the last messages. A table
    leaves out topics of the system, retry topics and empty dead-letter topics, unless --all is given.

    Nothing in STORE changes.
    """
    from tailrace.cli.listings import topic_listing, topic_row  # noqa: PLC0415

    with errors():
        found = topic_listing(target_of([store] if store else [], broker, namesrv, context, tls=tls))
    show_listing("topic", found, topic_row, every=every, as_json=as_json)


def create(
    words: Words,
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None,
    queues: Annotated[int, typer.Option(min=1, max=1024, help="Number of queues.")] = 4,
    attribute: Annotated[
        Optional[list[str]], typer.Option(metavar="NAME=VALUE", help="Attribute of the topic, "  # noqa: UP045
                                          "such as message.type=FIFO or reserve.time=48 (hours); may be repeated.")
    ] = None,
    create: Create = False,
    as_json: AsJson = False,
) -> None:
    """Create or change a topic.

    The number of its queues and its attributes are set.

    With --create a missing STORE is created.

    This command writes to STORE.
    """
    from tailrace.cli.messages import create_topic  # noqa: PLC0415

    *directory, name = words
    with errors():
        target = target_of(directory, broker, namesrv, context, tls=tls)
        show([create_topic(name, target, queues, key_values(attribute or [], "--attribute"), create=create)],
             as_json=as_json)


def stats(
    words: Words,
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None, as_json: AsJson = False,
) -> None:
    """Show offsets and messages of each queue.

    Nothing in STORE changes.
    """
    from tailrace.cli.messages import topic_stats  # noqa: PLC0415

    *directory, name = words
    with errors():
        target = target_of(directory, broker, namesrv, context, tls=tls)
        try:
            found = topic_stats(name, target)
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


def delete(
    words: Words,
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None, yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its queues.

    The records stay in the log until their files are deleted, but no command or broker shows them again. Everything
    that belongs to the topic is deleted with it: offsets of groups, POP retries, and Lite topics. The output names the
    topics that were deleted as well, and what is kept.

    This command writes to STORE.
    """
    from tailrace.cli.messages import delete_topic  # noqa: PLC0415

    *directory, name = words
    with errors():
        target = target_of(directory, broker, namesrv, context, tls=tls)
        confirm(f"delete topic {name} and its messages", yes=yes)
        try:
            done = delete_topic(name, target)
        except RemotingCommandError as error:
            raise topic_or_nearest(target, name, error) from error
    show([deleted_line(name, done)], as_json=as_json)


def purge(
    words: Words,
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None,
    queue: Annotated[Optional[int], typer.Option(min=0, help="Only this queue.")] = None,  # noqa: UP045
    before: Annotated[
        str, typer.Option(metavar="TIME", help="Only messages that were stored before: 2026-01-31T12:00 or "
                          "milliseconds since 1970.")] = "",
    as_json: AsJson = False,
) -> None:
    """Remove the messages of a topic.

    This is final: no consumer receives them again. Prints a line for each queue, with its least offset before and
    after. The bytes are freed when their files are deleted, which `tailrace retention` shows. A Java broker that
    opens the directory shows purged messages again, as long as their files exist.

    This command writes to STORE.
    """
    from tailrace.cli.messages import purge_topic  # noqa: PLC0415

    *directory, name = words
    before_ms = milliseconds(before) if before else None
    with errors():
        target = target_of(directory, broker, namesrv, context, tls=tls)
        if not target.store and not target.broker:
            [address, *more] = ask(target, lambda admin: admin.brokers()) or [""]
            if more or not address:
                raise usage(f"{target.namesrv} has {1 + len(more) if address else 0} brokers: name one with --broker")
            target = target._replace(namesrv="", broker=address)
        done = purge_topic(name, target, queue, before_ms)
    show(({"topic": name, "queueId": queue_id, "from": low, "to": high, "purged": high - low}
          for queue_id, (low, high) in sorted(done.items())), as_json=as_json, empty=f"{name} has no queue")
