"""``tailrace send`` and ``tailrace tail``."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tailrace.cli.admin import topic_or_nearest
from tailrace.cli.arguments import (
    AsJson,
    Broker,
    Context,
    Create,
    Namesrv,
    Tls,
    Topic,
    Where,
    errors,
    key_values,
    usage,
)
from tailrace.cli.contexts import target_of
from tailrace.cli.output import print_lines, print_message, show, wants_table
from tailrace.cli.signals import Stopped
from tailrace.config import whole_number
from tailrace.errors import RemotingCommandError

__all__ = ["send", "tail"]


def _timer_properties(delay: int, deliver_at: int, level: int) -> dict[str, str]:
    """Return the property that delays a message, from the options of ``send``."""
    named = {"TIMER_DELAY_MS": delay, "TIMER_DELIVER_MS": deliver_at, "DELAY": level}
    said = {name: str(value) for name, value in named.items() if value}
    if len(said) > 1:
        raise usage("use one of --delay, --deliver-at and --delay-level")
    return said


def _bodies(body: str, file: Path | None, *, lines: bool) -> Iterator[bytes]:
    """Yield the bodies to send, from an argument, a file or stdin, as a whole or by line."""
    if file is None and body != "-":
        yield body.encode(errors="surrogateescape")
        return
    with sys.stdin.buffer if file is None else file.open("rb") as source:
        if not lines:
            yield source.read()
            return
        for line in source:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def send(
    topic: Topic,
    words: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(metavar="[STORE] BODY", help="The store, and the text to send; - reads the text from stdin."),
    ] = None,
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--file", metavar="FILE", help="Send the contents of this file, in place of BODY."),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send a message for each line of the file or stdin.")] = False,
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None,
    queue: Annotated[
        int, typer.Option(min=-1, help="Queue of the topic; -1: the client chooses one.")] = -1,
    tags: Annotated[str, typer.Option(help="Tag.")] = "",
    key: Annotated[Optional[list[str]], typer.Option(help="Key; may be repeated.")] = None,  # noqa: UP045
    prop: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--property", metavar="NAME=VALUE", help="Property of the message; may be repeated.")
    ] = None,
    delay: Annotated[int, typer.Option(min=0, help="Deliver the message after this many milliseconds.")] = 0,
    deliver_at: Annotated[
        int, typer.Option(min=0, help="Deliver the message at this time, in milliseconds since 1970.")] = 0,
    delay_level: Annotated[
        int, typer.Option(min=0, help="Deliver the message after the delay of this level, 1 or more.")] = 0,
    create: Create = False,
    as_json: AsJson = False,
) -> None:
    """Send messages; print the place of each.

    The target is the directory STORE (through its server, if one has it open), --broker, --namesrv or
    --context; without any of them it is the default name server. With --create a missing STORE is created.

    This command writes to STORE.
    """
    from tailrace.cli.messages import send_messages  # noqa: PLC0415
    from tailrace.model import Message  # noqa: PLC0415

    directory = [*(words or ())]
    body = "" if file is not None or not directory else directory.pop()
    if file is None and (not words or (not directory and not broker + namesrv + context and (
            os.sep in body and Path(body).is_dir()))):
        raise usage(f"BODY is missing{' after ' + body if words else ''}: add a text, - for stdin, or --file FILE")
    if len(directory) > (0 if broker or namesrv or context else 1):
        if file is not None:
            raise usage(f"BODY and --file are both given, or STORE and a server: {' '.join(words or ())}")
        raise usage(f"BODY is one argument, quote it: {' '.join(words or ())}")
    if lines and file is None and body != "-":
        raise usage("--lines needs --file FILE, or - as BODY for stdin")
    more = key_values(prop or []) | _timer_properties(delay, deliver_at, delay_level)
    with errors():
        target = target_of(directory, broker, namesrv, context, tls=tls)
        messages = (
            Message(topic=topic, body=text, tags=tags or None, keys=key or (), properties=more)
            for text in _bodies(body, file, lines=lines))
        show(send_messages(messages, target, queue, create=create), as_json=as_json, empty="there was no line to send")


def tail(
    topic: Topic,
    store: Where = "",
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None,
    tags: Annotated[str, typer.Option(help='Only messages with these tags, such as "new || paid".')] = "*",
    start: Annotated[str, typer.Option("--from", help="first, last or an offset.")] = "last",
    most: Annotated[int, typer.Option("--max", min=0, help="End after this many messages; 0: no limit.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for further messages.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic as they arrive.

    Each message is a line: short on a terminal, JSON in a pipe.

    Nothing in STORE changes.
    """
    from tailrace.cli.messages import tail_messages  # noqa: PLC0415

    if start not in {"first", "last"} and whole_number(start) is None:
        raise usage(f"--from {start} is not first, last or an offset")
    if tags != "*" and not any(tag.strip() for tag in tags.split("||")):
        raise usage(f'--tags {tags!r} names no tag; "new || paid" names two')
    with errors():
        target = target_of([store] if store else [], broker, namesrv, context, tls=tls)
        table = wants_table(as_json=as_json)
        try:
            for number, line in enumerate(
                tail_messages(topic, target, start, tags, follow=follow), 1
            ):
                _print_message(line, table=table)
                if number == most:
                    return
        except RemotingCommandError as error:
            raise topic_or_nearest(target, topic, error) from error
        except (KeyboardInterrupt, Stopped):  # the usual end of a command that follows
            return


def _print_message(line: dict[str, Any], *, table: bool) -> None:
    if table:
        print_message(line)
    else:
        print_lines([line])
