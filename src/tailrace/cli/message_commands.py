"""``tailrace send`` and ``tailrace tail``."""

import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.admin import topic_or_nearest
from tailrace.cli.arguments import (
    AsJson,
    Broker,
    Context,
    Create,
    Namesrv,
    Tls,
    Topic,
    complain,
    duration,
    errors,
    key_values,
    usage,
)
from tailrace.cli.contexts import Target, target_of, with_target
from tailrace.cli.output import Progress, print_lines, print_message, show, wants_table
from tailrace.cli.signals import Stopped
from tailrace.cli.topics import milliseconds
from tailrace.config import whole_number
from tailrace.env.clock import SystemClock
from tailrace.errors import (
    FlushDiskTimeoutError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingTimeoutError,
    RequestTimeoutError,
)
from tailrace.formats.names import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
from tailrace.spellings import duration_ms, time_ms

__all__ = ["send", "tail"]

_LAST_MAX: Final = 10_000
"""Messages of `tail --last`, which are held in memory."""
_UNSURE: Final = (
    Stopped, KeyboardInterrupt, RemotingConnectError, RemotingTimeoutError, RequestTimeoutError, FlushDiskTimeoutError)
"""What ends a send whose answer has not arrived, so that its message may be stored."""


def _timer_properties(delay: str, deliver_at: str, level: int) -> dict[str, str]:
    """Return the property that delays a message, from the options of ``send``."""
    named = {
        TIMER_DELAY_MS: duration(delay, "--delay") if delay else 0,
        TIMER_DELIVER_MS: milliseconds(deliver_at, "--deliver-at") if deliver_at else 0, DELAY: level}
    said = {name: str(value) for name, value in named.items() if value}
    if len(said) > 1:
        raise usage("use one of --delay, --deliver-at and --delay-level")
    return said


class _Lines:
    """The lines of a file or of stdin after the first ``skip``, and how far they were read."""

    def __init__(self, source: BinaryIO, skip: int) -> None:
        self._source, self._skip = source, skip
        self._size = 0
        with suppress(OSError):  # a source without a descriptor
            about = os.fstat(source.fileno())
            self._size = about.st_size if stat.S_ISREG(about.st_mode) else 0
        self._read = 0
        self.count = 0
        """Number of lines that were read, with the skipped ones."""

    def __iter__(self) -> Iterator[bytes]:
        for line in self._source:
            self.count += 1
            self._read += len(line)
            if self.count > self._skip:
                yield line.removesuffix(b"\n").removesuffix(b"\r")

    @property
    def share(self) -> float:
        """The share that was read, 0 while the size is not known, as that of a pipe."""
        return self._read / self._size if self._size else 0.0

    def all(self) -> int | None:
        """Return the number of lines to send, for which a file is read to its end; None for a pipe."""
        if not self._size:
            return None
        return max(self.count + sum(1 for _ in self._source) - self._skip, 0)


def _send_lines(
    source: BinaryIO, skip: int, made: Callable[[Iterable[bytes]], Iterator[dict[str, Any]]], topic: str,
    *, table: bool,
) -> None:
    """Send a message for each line, with a bar on a terminal; say how many were stored if the command stops."""
    lines, stored = _Lines(source, skip), 0

    def sent(progress: Progress) -> Iterator[dict[str, Any]]:
        nonlocal stored
        for line in made(lines):
            stored += 1
            progress(lines.share)
            yield line

    try:
        with Progress("send", beside_output=table) as progress:
            if table:
                deque(sent(progress), 0)
            else:
                print_lines(sent(progress))
    except BaseException as error:
        if lines.count <= skip:
            raise  # no line was sent
        unsure = lines.count > skip + stored and isinstance(error, _UNSURE)
        every = lines.all()
        complain(
            f"stored {stored:,}{'' if every is None else f' of {every:,}'} lines, stopped"
            + (f"; line {lines.count:,} may be stored as well" if unsure else f" at line {lines.count:,}")
            + f"; --skip {skip + stored} continues there")
        raise
    if skip > lines.count:
        complain(f"--skip {skip} is more than the {lines.count:,} lines that were read: nothing was sent")
        raise typer.Exit(1)
    if table:
        print(f"stored {stored:,} lines in {topic}" if stored else "there was no line to send")


def _places_and_body(
    words: list[str], file: Path | None, broker: str, namesrv: str, context: str
) -> tuple[list[str], str]:
    """Return STORE, if it is named, and BODY, which is empty with a file. Raises the error of wrong arguments."""
    places = [*words]
    body = "" if file is not None or not places else places.pop()
    if file is None and (not words or (not places and not broker + namesrv + context and (
            os.sep in body and Path(body).is_dir()))):
        raise usage(f"BODY is missing{' after ' + body if words else ''}: add a text, - for stdin, or --file FILE")
    if len(places) > (0 if broker or namesrv or context else 1):
        if len(places) == 1 and Path(places[0]).is_dir():
            target_of(places, broker, namesrv, context)  # says that STORE and the server are different targets
        if file is not None:
            raise usage(f"BODY and --file are both given, or STORE and a server: {' '.join(words)}")
        raise usage(f"BODY is one argument, quote it: {' '.join(words)}")
    return places, body


def send(
    topic: Topic,
    words: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Argument(metavar="[STORE] BODY", help="The store, and the text to send; - reads the text from stdin.",
                       autocompletion=completion.places),
    ] = None,
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--file", metavar="FILE", help="Send the contents of this file, in place of BODY."),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send a message for each line of the file or stdin.")] = False,
    skip: Annotated[int, typer.Option(min=0, metavar="N", help="With --lines: leave out the first N lines.")] = 0,
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None,
    queue: Annotated[
        int, typer.Option(min=-1, help="Queue of the topic; -1: the client chooses one.")] = -1,
    tags: Annotated[str, typer.Option(help="Tag.")] = "",
    key: Annotated[Optional[list[str]], typer.Option(help="Key; may be repeated.")] = None,  # noqa: UP045
    prop: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--property", metavar="NAME=VALUE", help="Property of the message; may be repeated.")
    ] = None,
    delay: Annotated[
        str, typer.Option(metavar="TIME", help="Deliver the message after this time, such as 5s, 10m or 1h30m.")] = "",
    deliver_at: Annotated[
        str, typer.Option(metavar="TIME", help="Deliver the message at this time: 2026-01-31T12:00 or milliseconds "
                          "since 1970.")] = "",
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

    directory, body = _places_and_body(words or [], file, broker, namesrv, context)
    if lines and file is None and body != "-":
        raise usage("--lines needs --file FILE, or - as BODY for stdin")
    if skip and not lines:
        raise usage("--skip needs --lines")
    more = key_values(prop or []) | _timer_properties(delay, deliver_at, delay_level)
    with errors():
        target = target_of(directory, broker, namesrv, context, tls=tls)

        def sent(bodies: Iterable[bytes]) -> Iterator[dict[str, Any]]:
            return send_messages((
                Message(topic=topic, body=text, tags=tags or None, keys=key or (), properties=more)
                for text in bodies), target, queue, create=create)

        with nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as source:
            if lines:
                _send_lines(source, skip, sent, topic, table=wants_table(as_json=as_json))
                return
            whole = file is not None or body == "-"
            show(sent([source.read() if whole else body.encode(errors="surrogateescape")]), as_json=as_json)


@with_target
def tail(
    *, topic: Topic, target: Target,
    tags: Annotated[str, typer.Option(help='Only messages with these tags, such as "new || paid".')] = "*",
    start: Annotated[str, typer.Option(
        "--from", help="first, last or an offset.", autocompletion=completion.one_of("first", "last"))] = "last",
    last: Annotated[
        int, typer.Option(min=0, max=_LAST_MAX, metavar="N", help="Begin with the last N messages.")] = 0,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Begin at this time: 10m, 1h30m or 2026-01-31T12:00.")] = "",
    most: Annotated[int, typer.Option("--max", min=0, help="End after this many messages; 0: no limit.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for further messages.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic as they arrive.

    Each message is a line: short on a terminal, JSON in a pipe.

    Nothing in STORE changes.
    """
    from tailrace.cli.messages import Start, tail_messages  # noqa: PLC0415
    from tailrace.client.subscription import Subscription  # noqa: PLC0415

    if start not in {"first", "last"} and whole_number(start) is None:
        raise usage(f"--from {start} is not first, last or an offset")
    if (start != "last") + bool(last) + bool(since) > 1:
        raise usage("use one of --from, --last and --since")
    if tags != "*" and not any(tag.strip() for tag in tags.split("||")):
        raise usage(f'--tags {tags!r} names no tag; "new || paid" names two')
    begin = Start(start, last, _since_ms(since) if since else 0)
    try:
        Subscription.of(topic, tags)
    except ValueError as error:
        raise usage(str(error).replace("tags=", "--tags: ", 1)) from None
    table = wants_table(as_json=as_json)
    try:
        for number, line in enumerate(tail_messages(topic, target, begin, tags, follow=follow), 1):
            if table:
                print_message(line)
            else:
                print_lines([line])
            if number == most:
                return
    except RemotingCommandError as error:
        raise topic_or_nearest(target, topic, error) from error
    except (KeyboardInterrupt, Stopped):  # the usual end of a command that follows
        return


def _since_ms(text: str) -> int:
    """Return the time of --since: a duration before now, or a time."""
    try:
        return max(SystemClock().now_ms() - duration_ms(text), 1)
    except ValueError:
        pass
    try:
        return time_ms(text)
    except ValueError:
        raise usage(f"--since {text!r} is neither a duration such as 10m nor a time such as 2026-01-31T12:00") from None
