"""The sub-commands."""

import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tailrace import __version__
from tailrace.cli.problems import explained, read_config_file
from tailrace.cli.signals import Stopped, stop_at_signals
from tailrace.config import StoreConfig, whole_number
from tailrace.errors import StoreError
from tailrace.java_settings import refused_settings, unused_settings

__all__ = ["app", "run"]

app = typer.Typer(
    name="tailrace",
    help="A durable message store and broker that speaks Apache RocketMQ 5.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)
topic_app = typer.Typer(
    help="Topics of a directory or of a running broker.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(topic_app, name="topic")

Store = Annotated[Path, typer.Argument(metavar="STORE", help="A store directory.")]
Config = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--config", metavar="FILE", help="A RocketMQ .properties file."),
]
Broker = Annotated[str, typer.Option(metavar="HOST:PORT", help="A running broker.")]
Namesrv = Annotated[str, typer.Option(metavar="HOST:PORT", help="A running name server.")]
Where = Annotated[
    str, typer.Argument(metavar="STORE", help="A store directory, unless a server is named.")
]
Topic = Annotated[str, typer.Option("--topic", help="Name of a topic.")]
Create = Annotated[
    bool, typer.Option("--create", help="Make the directory STORE a store when it is none yet.")]


def run() -> None:
    """Run the command; an error that is ours is one line and exit code 1.

    SIGINT, SIGTERM and SIGHUP end it after everything that is open was closed, see `signals`.
    """
    stop_at_signals()
    try:
        app(prog_name="tailrace")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None


@contextmanager
def errors() -> Iterator[None]:
    """Turn what users can mend into one line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (StoreError, OSError) as error:
        print(f"tailrace: {explained(error)}", file=sys.stderr)
        raise typer.Exit(1) from None
    except ModuleNotFoundError as error:
        print(f"tailrace: {error.name} is not installed", file=sys.stderr)
        raise typer.Exit(3) from None


def read_properties(config: Path | None, *, refused_too: bool = True) -> dict[str, str]:
    """Return the settings of a ``--config`` file; print the names that have no effect here."""
    if config is None:
        return {}
    values = read_config_file(config)
    if unknown := unused_settings(values, without=() if refused_too else refused_settings(values)):
        print(f"tailrace: settings of {config} not used here: {', '.join(unknown)}", file=sys.stderr)
    return values


def print_lines(lines: Iterable[dict[str, Any]]) -> None:
    """JSON lines on stdout."""
    import orjson  # noqa: PLC0415 - help and complaints need none

    for line in lines:
        sys.stdout.buffer.write(orjson.dumps(line) + b"\n")
    sys.stdout.buffer.flush()


def usage(text: str) -> typer.Exit:
    """Say what is wrong with the arguments; the exit to raise."""
    print(f"tailrace: {text}", file=sys.stderr)
    return typer.Exit(2)


def finite(value: float) -> float:
    """Return a number of the command line. Raises BadParameter for ``nan`` and ``inf``, which bounds accept."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def one_target(directory: list[str], broker: str, namesrv: str) -> str:
    """The directory, or nothing when a server is named; exactly one target must be."""
    if len(directory) + bool(broker) + bool(namesrv) != 1:
        raise usage("say one of STORE, --broker and --namesrv")
    return directory[0] if directory else ""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tailrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A durable message store and broker that speaks Apache RocketMQ 5."""


@app.command()
def serve(
    store: Store,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The broker; port 0 picks one. Without it bindAddress "
                          "and listenPort of the file, or 127.0.0.1:10911.")] = "",
    namesrv_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The name server; port 0 picks one; none: no name server. "
                          "Without it the address of this machine in namesrvAddr of the file, or "
                          "127.0.0.1:9876 if the file has no namesrvAddr.")] = "",
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Answer /ready and /metrics there, from the start.")
    ] = "",
    config: Config = None,
    ignore_setting: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
        typer.Option(metavar="NAME", help="Start although this setting of the file is not honoured; may be "
                     "repeated.")] = None,
    allow_remote: Annotated[
        bool, typer.Option(help="Listen on addresses other machines can reach; there is no access control.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; to stderr.")] = "info",
) -> None:
    """Serve a directory to RocketMQ clients.

    Broker and name server are one process. The directory is made when it is missing. The first line
    on stdout, once clients can be served, is: ready broker=H:P namesrv=H:P recovered_ms=N

    H:P are the addresses that it listens on. If clients get another one (brokerIP1), advertised=H:P
    follows. SIGTERM, SIGINT and SIGHUP close the store cleanly; a second one while the store is still
    being opened ends the process immediately, as a crash would.

    The broker registers at the name servers of namesrvAddr that are not its own. A setting that promises
    security or durability and is not honoured stops the start.
    """
    from tailrace.cli.serve import LOOPBACK, serve_store  # noqa: PLC0415 - asyncio and the broker
    from tailrace.cli.serve_settings import places_of, take_settings  # noqa: PLC0415

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise usage(f"--log-level {log_level} is not debug, info, warning or error")
    logging.basicConfig(
        level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with errors():
        store_config, broker_config, name_server_config = take_settings(
            read_properties(config, refused_too=False), ignore_setting or ())
        try:
            places = places_of(broker_config, listen, namesrv_listen, http)
        except ValueError as error:
            raise usage(str(error)) from None
        for host in places.hosts:
            if not allow_remote and host not in LOOPBACK:
                raise usage(
                    f"{host} can be reached by other machines and there is no access control yet; "
                    "say --allow-remote if that is meant")
        serve_store(
            str(store), places.broker, places.namesrv, store_config, broker_config, places.http,
            names=places.names, allow_remote=allow_remote, name_server_config=name_server_config,
            settings_file=str(config.resolve()) if config is not None else "")


@app.command()
def dump(
    store: Store,
    only: Annotated[
        str, typer.Option(help="Comma list of store, queues, messages, timers, index, checkpoint.")] = "",
    topic: Annotated[str, typer.Option(help="This topic alone.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Queues as their files are, not as recovery leaves them.")
    ] = False,
    body: Annotated[bool, typer.Option("--body", help="Bodies as base64, not only their hash.")] = False,
    config: Config = None,
) -> None:
    """Print what a directory holds, as JSON lines.

    Nothing is changed. A directory that was not closed is shown as recovery would leave it.
    """
    from tailrace.doctor import dump as doctor  # noqa: PLC0415 - NumPy and kernels
    from tailrace.store.directory import DirectoryState, StoreDirectory  # noqa: PLC0415

    kinds = only.split(",") if only else doctor.KINDS
    if unknown := set(kinds) - set(doctor.KINDS):
        raise usage(f"--only {','.join(sorted(unknown))}: known are {', '.join(doctor.KINDS)}")
    with errors():
        directory = StoreDirectory(
            str(store), config=StoreConfig.from_properties(read_properties(config)), raw=raw,
            index=bool(only) and "index" in kinds)
        if directory.state is DirectoryState.UNCLEAN and not raw:
            print("tailrace: the store was not closed; shown is what recovery would leave",
                  file=sys.stderr)
        print_lines(doctor.dump(directory, only=kinds, topic=topic, body=body))


@app.command()
def query(
    store: Store,
    topic: Topic,
    key: Annotated[str, typer.Option(help="A key or unique key.")],
    config: Config = None,
) -> None:
    """Print the messages that have a key.

    JSON lines, the oldest first; nothing is changed.
    """
    from tailrace.doctor.dump import query as doctor_query  # noqa: PLC0415
    from tailrace.store.directory import StoreDirectory  # noqa: PLC0415

    with errors():
        directory = StoreDirectory(
            str(store), config=StoreConfig.from_properties(read_properties(config)), index=True)
        print_lines(doctor_query(directory, topic, key))


@app.command()
def recover(
    store: Store,
    spark: Annotated[bool, typer.Option("--spark", help="Have tasks of Spark read the log.")] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="With --spark: where Spark runs.")] = "local[*]",
    conf: Annotated[
        Optional[list[str]], typer.Option(metavar="NAME=VALUE", help="With --spark: its settings.")  # noqa: UP045
    ] = None,
    staging: Annotated[
        str, typer.Option(metavar="DIR", help="With --spark: a directory that every executor sees.")
    ] = "",
    config: Config = None,
) -> None:
    """Make a directory right and close it cleanly.

    The last line says what was done.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")
    if spark:
        from tailrace.cli.pipeline import recover_store  # noqa: PLC0415

        recover_store("recover", store, master, conf, staging, config, rebuild=False)
        return
    from tailrace.node.message_store import MessageStore  # noqa: PLC0415

    with errors():
        settings = StoreConfig.from_properties(read_properties(config))
        with MessageStore.open(
            store, config=settings, services=False, create=False, must_write=True
        ) as opened:
            report = opened.recovery_report
        print_lines([report])


@app.command()
def verify(store: Store, config: Config = None) -> None:
    """Audit a directory without changing it.

    Every record, queue unit and index entry is looked at. A JSON line for each finding and a summary;
    exit code 1 when there are findings.
    """
    from tailrace.doctor.verify import verify as audit  # noqa: PLC0415 - NumPy and kernels

    with errors():
        found = 0
        settings = StoreConfig.from_properties(read_properties(config))
        for line in audit(str(store), settings):
            print_lines([line])
            found += "finding" in line
    if found:
        raise typer.Exit(1)


@app.command()
def repair(
    store: Store,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done.")] = False,
    seal_damage: Annotated[
        bool, typer.Option("--seal-damage", help="Write placeholder records over damage, so that a "
                           "Java broker does not end the log there.")] = False,
    config: Config = None,
) -> None:
    """Build queues and index anew from the log.

    That is done whatever is there; damage goes to quarantine.
    """
    from tailrace.doctor.verify import repair_plan  # noqa: PLC0415
    from tailrace.node.message_store import MessageStore  # noqa: PLC0415

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s")
    with errors():
        settings = StoreConfig.from_properties(read_properties(config))
        if plan:
            print_lines(repair_plan(str(store), settings, seal_damage=seal_damage))
            return
        with MessageStore.open(
            store, config=settings, services=False, create=False, rebuild=True,
            seal_damage=seal_damage, must_write=True,
        ) as opened:
            report = opened.recovery_report
        print_lines([report])


@app.command("disk-usage")
def disk_usage(
    store: Store, as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
    config: Config = None,
) -> None:
    """Show the bytes of a directory.

    By kind of file: lengths, and what is really taken of the disk.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from tailrace.doctor.disk_usage import disk_usage as measure  # noqa: PLC0415
    from tailrace.env import OsFileSystem  # noqa: PLC0415
    from tailrace.errors import NotAStoreError  # noqa: PLC0415
    from tailrace.store.log_paths import log_paths  # noqa: PLC0415
    from tailrace.store.own_settings import remembered  # noqa: PLC0415

    with errors():
        root = str(store.absolute())
        settings = remembered(OsFileSystem(), root, StoreConfig.from_properties(read_properties(config)))
        if not any(Path(path).is_dir() for path in log_paths(settings, root).all):
            raise NotAStoreError(str(store), "it has no commitlog")
        found = measure(OsFileSystem(), root, settings)
    if as_json or not sys.stdout.isatty():
        print_lines(asdict(entry) for entry in found)
        return
    print(f"{'kind':14} {'files':>6} {'apparent':>16} {'allocated':>16}")
    for entry in found:
        print(f"{entry.kind:14} {entry.files:6} {entry.apparent_bytes:16,} {entry.allocated_bytes:16,}")


@app.command()
def retention(
    store: Store,
    delete: Annotated[bool, typer.Option("--delete-now", help="Delete what may go.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
    config: Config = None,
) -> None:
    """Say which files may go, and why others stay.

    For each CommitLog file: whether it may go, since when, or what keeps it.

    --delete-now asks the server of the directory to delete (as mqadmin deleteExpiredCommitLog), or
    makes one pass when nobody serves it. Settings are those of --config, not those of a server.
    """
    from tailrace.cli.retention import (  # noqa: PLC0415
        answer_lines,
        delete_now,
        explain_retention,
        json_lines,
    )

    with errors():
        settings = StoreConfig.from_properties(read_properties(config))
        gone, by = delete_now(str(store), settings) if delete else ([], "")
        view = explain_retention(str(store), settings)
    if as_json:
        if delete:
            print_lines([{"kind": "deleted", "by": by, "files": gone}])
        print_lines(json_lines(view))
        return
    if delete:
        print(f"deleted by {by}: {' '.join(gone) or 'nothing'}")
    for line in answer_lines(view, str(store), settings):
        print(line)


def key_values(items: list[str], option: str = "--property") -> dict[str, str]:
    """The values of an option that is NAME=VALUE and may be repeated."""
    values = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name or not value:
            raise usage(f"{option} {item!r} is not NAME=VALUE")
        values[name] = value
    return values


def timer_properties(delay: int, deliver_at: int, level: int = 0) -> dict[str, str]:
    """What makes a message wait, by the options of ``send``."""
    named = {"TIMER_DELAY_MS": delay, "TIMER_DELIVER_MS": deliver_at, "DELAY": level}
    said = {name: str(value) for name, value in named.items() if value}
    if len(said) > 1:
        raise usage("say one of --delay, --deliver-at and --delay-level")
    return said


@app.command()
def send(
    words: Annotated[
        list[str], typer.Argument(metavar="[STORE] BODY", help="Where to, and the text to put.")
    ],
    topic: Topic,
    broker: Broker = "",
    namesrv: Namesrv = "",
    queue: Annotated[
        int, typer.Option(min=-1, help="Queue of the topic; -1: the client's choice.")] = -1,
    tags: Annotated[str, typer.Option(help="Tag.")] = "",
    key: Annotated[Optional[list[str]], typer.Option(help="Key; may be repeated.")] = None,  # noqa: UP045
    prop: Annotated[
        Optional[list[str]], typer.Option("--property", metavar="NAME=VALUE", help="May be repeated.")  # noqa: UP045
    ] = None,
    delay: Annotated[int, typer.Option(min=0, help="Deliver it after so many milliseconds.")] = 0,
    deliver_at: Annotated[
        int, typer.Option(min=0, help="Deliver it then, milliseconds since 1970.")] = 0,
    delay_level: Annotated[
        int, typer.Option(min=0, help="Deliver it after the delay of this level, 1 or more.")] = 0,
    create: Create = False,
) -> None:
    """Put one message by hand; prints where it is.

    The target is the directory STORE (through its server, when it is being served), --broker or
    --namesrv. STORE must be a store already, unless --create is said.
    """
    from tailrace.cli.messages import send_message  # noqa: PLC0415
    from tailrace.model import Message  # noqa: PLC0415

    *directory, body = words
    if len(directory) > (0 if broker or namesrv else 1):
        raise usage(f"BODY is one argument, quote it: {' '.join(words)}")
    store = one_target(directory, broker, namesrv)
    message = Message(
        topic=topic, body=body.encode(), tags=tags or None, keys=key or (),
        properties=key_values(prop or []) | timer_properties(delay, deliver_at, delay_level))
    with errors():
        print_lines([send_message(message, store, broker, namesrv, queue, create=create)])


@app.command()
def tail(
    topic: Topic,
    store: Where = "",
    broker: Broker = "",
    namesrv: Namesrv = "",
    start: Annotated[str, typer.Option("--from", help="first, last or an offset.")] = "last",
    most: Annotated[int, typer.Option("--max", min=0, help="End after this many messages; 0: no end.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for more.")] = True,
) -> None:
    """Print the messages of a topic as they come.

    A JSON line each.
    """
    from tailrace.cli.messages import tail_messages  # noqa: PLC0415

    one_target([store] if store else [], broker, namesrv)
    if start not in {"first", "last"} and whole_number(start) is None:
        raise usage(f"--from {start} is not first, last or an offset")
    with errors():
        try:
            for number, line in enumerate(
                tail_messages(topic, store, broker, namesrv, start, follow=follow), 1
            ):
                print_lines([line])
                if number == most:
                    return
        except (KeyboardInterrupt, Stopped):  # the usual end of a command that follows
            return


@topic_app.command("list")
def topic_list(
    store: Where = "",
    broker: Broker = "",
) -> None:
    """Topics with their queues, as JSON lines."""
    from tailrace.cli.messages import list_topics  # noqa: PLC0415

    one_target([store] if store else [], broker, "")
    with errors():
        print_lines(list_topics(store, broker))


@topic_app.command("create")
def topic_create(
    words: Annotated[list[str], typer.Argument(metavar="[STORE] TOPIC")],
    broker: Broker = "",
    queues: Annotated[int, typer.Option(min=1, max=1024, help="Queues to read and write.")] = 4,
    attribute: Annotated[
        Optional[list[str]], typer.Option(metavar="NAME=VALUE", help="reserve.time (hours), "  # noqa: UP045
                                          "retention.ms, retention.bytes ...; may be repeated.")
    ] = None,
    create: Create = False,
) -> None:
    """Create or change a topic.

    What changes is the number of its queues and its attributes.

    STORE must be a store already, unless --create is said.
    """
    from tailrace.cli.messages import create_topic  # noqa: PLC0415

    *directory, name = words
    store = one_target(directory, broker, "")
    with errors():
        print_lines([
            create_topic(name, store, broker, queues, key_values(attribute or [], "--attribute"),
                         create=create)])


# Sub-commands in modules of their own.
from tailrace.cli import pipeline as _pipeline  # noqa: E402, F401
from tailrace.cli import pipeline_archive as _pipeline_archive  # noqa: E402, F401
from tailrace.cli import pipeline_tables as _tables  # noqa: E402, F401
from tailrace.cli import timers as _timers  # noqa: E402, F401
from tailrace.cli import topic_purge as _topic_purge  # noqa: E402, F401
