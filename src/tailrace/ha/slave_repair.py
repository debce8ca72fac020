"""Make the log of a stopped slave a prefix of its master's: ``tailrace repair --follow-master``.

Order: find the end of the last record that both logs have, copy everything after it to quarantine, and only then cut it
off. A kill in between leaves more to cut the next time. Deletions of topics that a promotion has undone are forgotten,
so that the next open gives their messages units again. The abort file stays, so that the next open completes queues
and index for the shorter log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from tailrace.config import BrokerRole, StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import open_hint
from tailrace.errors import NotAStoreError, ReplicationError
from tailrace.formats import filenames
from tailrace.formats.names import TRANSACTION_GROUP
from tailrace.formats.pop import REVIVE_GROUP
from tailrace.ha.slave_comparison import MasterLog, SlaveComparison
from tailrace.kernels.shared import constants as C
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.directory_opening import check_directory, has_log, write_abort
from tailrace.node.lock import lock_store
from tailrace.node.retention.topics import forget_deletions
from tailrace.remoting.client import RemotingClient
from tailrace.store.default_message_store import DefaultMessageStore, encode_flushed
from tailrace.store.directory_format import read_format, remembered
from tailrace.store.geometry import recognise
from tailrace.store.lives import Ended, undone
from tailrace.store.recovery.log_tail import nonzero_after
from tailrace.store.recovery.quarantine import NOT_AT_THE_MASTER, Quarantine
from tailrace.store.retention.min_offsets import decode_ended, read_ended
from tailrace.store.walk.scan import LogEnd, scan_files

__all__ = ["Repaired", "follow_master"]


class Repaired(NamedTuple):
    """What was done."""

    phy_offset: int
    """Where the log ends now, or would end: the end of the last record that both logs have."""
    cut_bytes: int
    """Bytes that were copied to quarantine and cut off."""
    cut_messages: int
    """Whole records among them. Clients may have got SEND_OK for each of them."""
    master_end: int
    """End of the master's log."""
    undone: list[str]
    """Topics that were deleted here and not at the master: their deletion is forgotten, or would be."""


async def _run(call: Callable[[], Any]) -> Any:
    return call()


def follow_master(
    clock: Clock, file_system: FileSystem, root: str, config: StoreConfig, names: tuple[str, str],
    client: Callable[[], RemotingClient], address: str, *, plan: bool,
) -> Repaired:
    """Cut off what the log at ``root`` has and its master at ``address`` does not have. With ``plan`` change nothing.

    ``names`` are the cluster and the name of both brokers. Raises ReplicationError if the brokers do not fit or have no
    record in common, RemotingError, StoreLockedError, or OSError; before the cut nothing has changed then.
    """
    config = replace(remembered(read_format(file_system, root), root, config), broker_role=BrokerRole.SLAVE)
    check_directory(file_system, root, config, create=False)
    if not has_log(file_system, root, config):
        raise NotAStoreError(root, "it has no commitlog")
    lock = lock_store(file_system, root, read_only=False)
    try:
        kept = read_format(file_system, root, again=True)
        config = recognise(file_system, root, kept, config, writes=True)
        store = DefaultMessageStore(clock, file_system, config, root, lambda _: False)
        try:
            return _follow(store, clock, names, client, address, plan=plan)
        finally:
            store.release()
    finally:
        lock.release()


def _follow(
    store: DefaultMessageStore, clock: Clock, names: tuple[str, str], client: Callable[[], RemotingClient],
    address: str, *, plan: bool,
) -> Repaired:
    log = store.commit_log.queue
    log.load()
    if not log.files:
        return Repaired(0, 0, 0, 0, [])
    end = LogEnd(log.min_offset)
    for _ in scan_files(log.files, log.min_offset, log.max_offset, C.CHECK_ALL, end):
        pass  # up to the first bytes that are not a record
    log.set_end(end.phy_offset)
    cut_at, master_low, master_end, masters = asyncio.run(_compared(store, names, client, address))
    log.close()
    log.load()  # with what follows the end
    if cut_at <= max(log.min_offset, master_low):
        raise ReplicationError(
            "different", "the logs have no record in common; for a new copy of the master's run: tailrace replica "
            f"reset {store.root} --config FILE", cut_at)
    quarantine = Quarantine(
        clock, store.file_system, f"{store.root}/{filenames.QUARANTINE}", store.config.quarantine_max_bytes)
    cut, messages = 0, sum(len(chunk.rows) for chunk in scan_files(
        log.files, cut_at, log.max_offset, C.CHECK_PHY_OFFSET, LogEnd(cut_at)))
    for file, at, data in nonzero_after(log, cut_at):
        cut += len(data.rstrip(b"\0")) if plan else quarantine.keep(
            file.path, at, file.file_from_offset + at, data, f"{NOT_AT_THE_MASTER}{address}")
    deleted_here = [] if masters is None else undone(read_ended(store.file_system, store.root), masters, master_low)
    if not plan and (cut or deleted_here):
        write_abort(store.file_system, store.root)
        _forget_deliveries(store)
        store.progress.forget()  # it has the ends of queues of the log that is cut off, or without those of old lives
    if not plan and deleted_here:
        forget_deletions(clock, store.file_system, f"{store.root}/{filenames.CONFIG}", deleted_here)
    if not plan and cut:
        _forget_progress(store, clock)
        _lower_flushed(store, cut_at)
        log.truncate_dirty_files(cut_at)
        for file in log.files:
            file.flush()
    return Repaired(cut_at, cut, messages, master_end, deleted_here)


def _lower_flushed(store: DefaultMessageStore, until: int) -> None:
    """Sync the log, and say durably that it is synced up to ``until`` and no further, before it is cut there.

    After a power loss the hint of before would count again, and bytes that were never synced would be damage of synced
    ones. Raises OSError or FatalStorageError.
    """
    for segment in store.commit_log.queue.files:
        segment.doubt()
        segment.flush()
    own = f"{store.root}/{filenames.OWN}"
    store.file_system.makedirs(own)
    with closing(open_hint(store.file_system, f"{store.root}/{filenames.FLUSHED}")) as hint:
        hint.pwrite(encode_flushed(0, until, 0), 0)
        hint.sync_data()
    store.file_system.sync_dir(own)


def _forget_deliveries(store: DefaultMessageStore) -> None:
    """Remove durably up to where timers and delay levels are delivered.

    The messages that say so may be among those that are cut off. Without the files, the next open looks up in the index
    which of them are delivered.
    """
    directory, delays = f"{store.root}/{filenames.CONFIG}", "delayOffset.json"
    paths = [f"{directory}/{name}" for name in (filenames.TIMERCHECK, delays, f"{delays}.bak")]
    present = [path for path in paths if store.file_system.exists(path)]
    for path in present:
        store.file_system.remove(path)
    if present:
        store.file_system.sync_dir(directory)


def _forget_progress(store: DefaultMessageStore, clock: Clock) -> None:
    """Forget durably up to where half messages are settled, and up to where popped messages are redelivered.

    The committed messages and the copies that say so may be among those that are cut off. Without the offsets, a master
    looks up in the index which of them it has. The next copy brings the offsets of the master.
    """
    offsets = ConsumerOffsetManager.of_stopped(store.file_system, f"{store.root}/{filenames.CONFIG}", clock)
    if offsets.load():
        offsets.remove_groups({TRANSACTION_GROUP, REVIVE_GROUP})


async def _compared(
    store: DefaultMessageStore, names: tuple[str, str], client: Callable[[], RemotingClient], address: str,
) -> tuple[int, int, int, dict[str, Ended] | None]:
    """Return the end of the last record that both logs have, begin and end of the master's log, and its deletions.

    The deletions of a master of RocketMQ are not known: None.
    """
    asking = client()
    try:
        comparison = SlaveComparison(store, master := MasterLog(asking, address), _run, *names)
        end = await comparison.common_end()
        state = await master.state()
        return end, comparison.master_low, comparison.master_end, None if state is None else decode_ended(state)
    finally:
        await asking.close()
