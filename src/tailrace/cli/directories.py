"""Commands on a store directory: dump, query, recover, verify, repair, disk-usage, retention, timers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.arguments import (
    AsJson,
    Config,
    Store,
    Topic,
    confirm,
    errors,
    read_properties,
    size_in_bytes,
    usage,
)
from tailrace.cli.interpreted import warn_if_interpreted
from tailrace.cli.output import (
    Progress,
    local_time,
    print_kinds,
    print_lines,
    print_table,
    print_text,
    show,
    show_one,
    wants_table,
)
from tailrace.cli.problems import no_such
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import StoreError
from tailrace.formats.filenames import CONFIG
from tailrace.java_settings import refused_settings
from tailrace.spellings import camel

if TYPE_CHECKING:
    from tailrace.store.directory import StoreDirectory

__all__ = ["disk_usage", "dump", "query", "recover", "repair", "retention", "timers", "verify"]


def dump(
    store: Store,
    only: Annotated[
        str, typer.Option(help="One or more of store, queues, messages, timers, index and checkpoint, separated by "
                          "commas.")] = "",
    topic: Annotated[str, typer.Option(help="Only this topic.", autocompletion=completion.topics)] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Show queues as they are in their files, not as recovery would leave them.")
    ] = False,
    body: Annotated[
        bool, typer.Option("--body", help="Print bodies, not only their hash: text as body, other bytes as bodyBase64.")
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Print the contents of a directory.

    Nothing in STORE changes. A directory that was not closed cleanly is shown as recovery would leave it.
    """
    from tailrace.cli.reading import open_to_read  # noqa: PLC0415 - NumPy and kernels
    from tailrace.doctor import dump as doctor  # noqa: PLC0415

    kinds = only.split(",") if only else doctor.KINDS
    if unknown := set(kinds) - set(doctor.KINDS):
        raise usage(f"--only {','.join(sorted(unknown))}: known are {', '.join(doctor.KINDS)}")
    with errors(), Progress("dump", beside_output=False) as progress:
        directory, _ = open_to_read(store, config, raw=raw, index=bool(only) and "index" in kinds)
        if topic:
            _check_topic(directory, topic)
        lines = doctor.dump(directory, only=kinds, topic=topic, body=body)
        (print_kinds if wants_table(as_json=as_json) else print_lines)(_followed(lines, directory, progress))


def _followed(
    lines: Iterable[dict[str, Any]], directory: "StoreDirectory", progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the lines, and report as progress the share of the log that their messages take."""
    whole, done = max(directory.max_phy_offset - directory.min_phy_offset, 1), 0
    for line in lines:
        if message := line.get("message"):
            done += message["size"]
            progress(done / whole)
        yield line


def _check_topic(directory: "StoreDirectory", topic: str) -> None:
    """Raise StoreError if a directory has neither queues nor settings of a topic."""
    from tailrace.env.clock import SystemClock  # noqa: PLC0415
    from tailrace.node.topic_config import TopicConfigManager  # noqa: PLC0415

    known = {queue.topic for queue in directory.queues()}
    if topic in known:
        return
    topics = TopicConfigManager(directory.file_system, f"{directory.path}/{CONFIG}", BrokerConfig(), SystemClock())
    topics.load()
    known |= {one.topic_name for one in topics.items() if not topics.is_system_topic(one.topic_name)}
    if topic not in known:
        raise no_such("topic", topic, known, directory.path)


def query(
    store: Store,
    topic: Topic,
    key: Annotated[str, typer.Option(help="A key or unique key.")],
    body: Annotated[
        bool, typer.Option("--body", help="Print bodies: text as body, other bytes as bodyBase64.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Print the messages that have a key.

    The oldest comes first. A server that has STORE open syncs first. If it does not, and no message is found, the exit
    code is 1. Nothing in STORE changes.
    """
    from tailrace.cli.reading import open_to_read  # noqa: PLC0415 - NumPy and kernels
    from tailrace.doctor.dump import query as doctor_query  # noqa: PLC0415

    with errors():
        directory, behind = open_to_read(store, config, index=True)
        _check_topic(directory, topic)
        found = [*doctor_query(directory, topic, key, body=body)]
        if behind and not found:
            raise StoreError(f"no message of {topic} has the key {key} up to there")
        if not wants_table(as_json=as_json):
            print_lines(found)
            return
        names = ("queueId", "queueOffset", "physicalOffset", "storeTimestamp", "bodySize", "properties", "body",
                 "bodyBase64")
        print_table([
            {name: line["message"][name] for name in names if name in line["message"]} for line in found
        ], f"no message of {topic} has the key {key}")


def recover(
    store: Store,
    spark: Annotated[bool, typer.Option("--spark", help="Read the log with Spark tasks.")] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="With --spark: the Spark master.")] = "",
    conf: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="NAME=VALUE", help="With --spark: a setting of Spark; may be repeated.")
    ] = None,
    staging: Annotated[
        str, typer.Option(metavar="DIR", help="With --spark: a directory that all executors can reach.")
    ] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Recover a directory after a crash, and close it cleanly.

    The last line reports what was done. This command writes to STORE.
    """
    if not spark and (alone := [
            name for name, value in (("--master", master), ("--conf", conf), ("--staging", staging)) if value]):
        raise usage(f"{' and '.join(alone)} without --spark: add --spark")
    if spark:
        from tailrace.cli.pipeline import recover_store  # noqa: PLC0415

        recover_store("recover", store, master or "local[*]", conf, staging, config, rebuild=False, as_json=as_json)
        return
    _open_once("recover", store, config, as_json=as_json)


def _open_once(
    what: str, store: Path, config: Path | None, *, as_json: bool, rebuild: bool = False, seal_damage: bool = False,
) -> None:
    """Open a store, which recovers or rebuilds it, close it, and print the report."""
    from tailrace.node.message_store import MessageStore  # noqa: PLC0415 - NumPy and kernels
    from tailrace.node.store_opening import StoreParts  # noqa: PLC0415

    warn_if_interpreted()
    with errors():
        settings = StoreConfig.from_properties(read_properties(config))
        with Progress(what) as progress, MessageStore.open(
            store, config=settings, create=False, parts=StoreParts(
                services=False, must_write=True, on_recovery=progress, rebuild=rebuild, seal_damage=seal_damage),
        ) as opened:
            report = opened.recovery_report
        show_one(report, as_json=as_json)


def verify(
    store: Store,
    each: Annotated[bool, typer.Option(
        "--all", help="Show each finding, not a count for each kind and file. A pipe always gets each one.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Check a directory.

    Nothing in STORE changes. Every record, queue unit and index entry is checked. Prints the findings of each kind
    and file, what to do, and a summary; in a pipe a JSON line for each finding. The exit code is 1 if there are
    findings. A note is not a finding: it names a file that does not belong to the store, or a sealed record.
    """
    from tailrace.cli.reading import open_to_read  # noqa: PLC0415 - NumPy and kernels
    from tailrace.doctor.verify import verify_directory  # noqa: PLC0415

    warn_if_interpreted()
    table, findings, summary = wants_table(as_json=as_json), list[dict[str, Any]](), dict[str, Any]()
    notes, count = list[dict[str, Any]](), 0
    with errors(), Progress("verify") as progress:
        directory, _ = open_to_read(store, config, raw=True)
        for line in verify_directory(directory, progress):
            summary = line.get("summary", summary)
            count += "finding" in line
            if not table:
                print_lines([line])
                continue
            findings += [line["finding"]] if "finding" in line else []
            notes += [line["note"]] if "note" in line else []
    if table:
        from tailrace.cli.findings_output import print_findings  # noqa: PLC0415

        print_findings(str(store), directory.path, findings, notes, summary, each=each)
    if count:
        raise typer.Exit(1)


def repair(
    store: Store,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done; nothing in STORE changes.")] = False,
    seal_damage: Annotated[
        bool, typer.Option("--seal-damage", help="Write placeholder records over damaged records, so that a "
                           "Java broker does not end the log there.")] = False,
    follow_master: Annotated[str, typer.Option(
        metavar="HOST:PORT", help="Move what this master does not have to quarantine.")] = "",
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Rebuild queues and index from the log.

    They are rebuilt even if they are not damaged. Damaged bytes are copied to quarantine. This command writes to
    STORE; with --plan nothing in STORE changes.
    """
    from tailrace.doctor.verify import repair_plan  # noqa: PLC0415

    if follow_master:
        if seal_damage:
            raise usage("--follow-master and --seal-damage exclude each other")
        _follow_master(store, follow_master, config, plan=plan, as_json=as_json)
        return
    if not plan:
        _open_once("repair", store, config, as_json=as_json, rebuild=True, seal_damage=seal_damage)
        return
    warn_if_interpreted()
    with errors(), Progress("repair --plan") as progress:
        settings = StoreConfig.from_properties(read_properties(config))
        lines = [*repair_plan(str(store), settings, seal_damage=seal_damage, progress=progress)]
    if wants_table(as_json=as_json):
        print_table([line["plan"] for line in lines])
    else:
        print_lines(lines)


def _follow_master(store: Path, address: str, config: Path | None, *, plan: bool, as_json: bool) -> None:
    """Make the log of a slave a prefix of its master's, and print what was done."""
    from tailrace.auth.signature import Credentials  # noqa: PLC0415
    from tailrace.cli.serve_settings import take_settings  # noqa: PLC0415
    from tailrace.env import OsFileSystem  # noqa: PLC0415
    from tailrace.env.clock import SystemClock  # noqa: PLC0415
    from tailrace.ha.slave_repair import follow_master  # noqa: PLC0415
    from tailrace.remoting.client import RemotingClient  # noqa: PLC0415
    from tailrace.remoting.tls import outgoing_tls  # noqa: PLC0415

    warn_if_interpreted()
    with errors():
        values = read_properties(config)
        settings = take_settings(values, refused_settings(values))
        tls, inner = outgoing_tls(settings.tls), settings.auth.inner_client()
        user = None if inner is None else Credentials(*inner)
        done = follow_master(
            SystemClock(), OsFileSystem(), str(store.absolute()), settings.store,
            (settings.broker.broker_cluster_name, settings.broker.broker_name),
            lambda: RemotingClient(tls=tls, credentials=user), address, plan=plan)
    show([{"firstDifference": done.phy_offset, "masterEnd": done.master_end, "quarantineBytes": done.cut_bytes,
           "quarantineMessages": done.cut_messages, "undoneDeletions": done.undone,
           "changed": bool(done.cut_bytes or done.undone) and not plan}], as_json=as_json)


def disk_usage(store: Store, as_json: AsJson = False, config: Config = None) -> None:
    """Show the disk usage of a directory.

    For each kind of file: its length, and the bytes that it takes on the disk. Nothing in STORE changes.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from tailrace.doctor.disk_usage import disk_usage as measure  # noqa: PLC0415
    from tailrace.env import OsFileSystem  # noqa: PLC0415
    from tailrace.errors import NotAStoreError  # noqa: PLC0415
    from tailrace.store.directory_format import read_format, remembered  # noqa: PLC0415
    from tailrace.store.log_paths import log_paths  # noqa: PLC0415

    with errors():
        root = str(store.absolute())
        kept = read_format(OsFileSystem(), root)
        settings = remembered(kept, root, StoreConfig.from_properties(read_properties(config)))
        if not any(Path(path).is_dir() for path in log_paths(settings, root).all):
            raise NotAStoreError(str(store), "it has no commitlog")
        found = measure(OsFileSystem(), root, settings)
    show(({camel(name): value for name, value in asdict(entry).items()} for entry in found), as_json=as_json)


def retention(
    store: Store,
    delete: Annotated[bool, typer.Option("--delete-now", help="Delete the files that may be deleted.")] = False,
    free: Annotated[str, typer.Option(
        "--free", metavar="SIZE", help="Delete the oldest files, expired or not, until this much is freed: 10GiB, "
        "500MiB or a number of bytes.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --free: delete nothing, name the files.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --free: do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines; without it a pipe gets text.")] = False,
    config: Config = None,
) -> None:
    """Show which files may be deleted, and why others are kept.

    For each CommitLog file: whether it may be deleted and since when, or what keeps it. This command writes to STORE
    only with --delete-now, and with --free unless --dry-run is given; without them nothing in STORE changes.

    --delete-now sends a request to the server of the directory (as mqadmin deleteExpiredCommitLog does), or makes
    one pass itself if no server has the directory open. The settings are those of --config, not of a server.

    --free does not look at the age of a file. It deletes no file that a pin keeps (timers, pending transactions,
    groups of pinGroups, archiveDirectory), nor the last file. It asks for confirmation; without a terminal --yes is
    required. Exit code 1: less was freed than requested.
    """
    wanted = size_in_bytes("--free", free) if free else 0
    if dry_run and not free:
        raise usage("--dry-run needs --free")
    if yes and not free:
        raise usage("--yes needs --free")
    if free and delete:
        raise usage("--free and --delete-now exclude each other")
    if free:
        if not dry_run:
            from tailrace.store.directory import StoreDirectory  # noqa: PLC0415

            with errors():  # before a question about what is not a store
                StoreDirectory(str(store), config=StoreConfig.from_properties(read_properties(config)), raw=True)
            confirm(f"delete the oldest files of {store}, expired or not, until {free.strip()} is freed", yes=yes)
        _free(store, wanted, dry_run=dry_run, as_json=as_json, config=config)
        return
    from tailrace.cli.retention import delete_now, explain_retention  # noqa: PLC0415
    from tailrace.doctor.retention_report import answer_lines, json_lines  # noqa: PLC0415

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
        print_text([f"deleted by {by}: {' '.join(gone) or 'nothing'}"])
    print_text(answer_lines(view, str(store), settings))


def _free(store: Path, wanted: int, *, dry_run: bool, as_json: bool, config: Path | None) -> None:
    """Serve --free: print how the request ended."""
    from tailrace.cli.retention import free  # noqa: PLC0415
    from tailrace.doctor.retention_report import free_line  # noqa: PLC0415

    with errors():
        request, by = free(
            str(store), StoreConfig.from_properties(read_properties(config)), wanted, dry_run=dry_run)
    if as_json:
        print_lines([{"kind": "freed", "by": by, "dryRun": dry_run, **request.to_json()}])
    else:
        print_text([free_line(request, by, dry_run=dry_run)])
    if not request.done and not dry_run:
        raise typer.Exit(1)


def timers(
    store: Store,
    summary: Annotated[bool, typer.Option("--summary", help="Print only counts for each topic.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List pending timers by due time, and parked messages.

    A pending timer whose time has passed is overdue. The counts of pending timers include those that are overdue.

    A message is parked if it can never be put into its topic, or if its topic was deleted while it waited. Such a
    message is in the topic %DLQ%TAILRACE_TIMER, with the reason. Nothing in STORE changes.
    """
    from collections import Counter  # noqa: PLC0415

    from tailrace.cli.reading import open_to_read  # noqa: PLC0415 - NumPy and kernels
    from tailrace.doctor.timers import parked_timers, pending_timers  # noqa: PLC0415
    from tailrace.env.clock import SystemClock  # noqa: PLC0415

    with errors():
        directory, behind = open_to_read(store, config)
        pending, parked = pending_timers(directory), parked_timers(directory)
        found = sorted([*pending, *parked], key=lambda timer: (timer.due_ms, timer.phy_offset))
        if behind and not found:
            raise StoreError("no timer is pending up to there")
    now_ms = SystemClock().now_ms()
    if summary:
        counts, kept = Counter(timer.topic for timer in pending), Counter(timer.topic for timer in parked)
        late = Counter(timer.topic for timer in pending if timer.is_overdue(now_ms))
        first = {timer.topic: timer.due_ms for timer in reversed(pending)}
        show(({"topic": topic, "pending": counts[topic], "overdue": late[topic],
               **({"parked": kept[topic]} if parked else {}),
               "nextDueMs": first.get(topic, 0), "nextDueTime": local_time(first[topic]) if topic in first else ""}
              for topic in sorted({*counts, *kept})), as_json=as_json, empty="no timer is pending")
        return
    lines = [timer.line(now_ms)["timer"] for timer in found]
    if wants_table(as_json=as_json):
        names = ("dueMs", "topic", "queueId", "roll", "uniqKey", "state")
        print_table([{name: line[name] for name in names} for line in lines], "no timer is pending")
    else:
        print_lines({"timer": {**line, "dueTime": local_time(line["dueMs"])}} for line in lines)
