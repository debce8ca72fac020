"""Replace each file of a store, one at a time, by something odd, and report what every command does.

    odd_files.py DIRECTORY STATE ODDITY

A process of its own, because a command may hang; it prints a JSON line for each failure, and the number
of cases last. It makes a store below DIRECTORY, ``clean`` or ``crashed``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import json
import logging
import os
import shutil
import socket
import sys
import time
from pathlib import Path

import typer.main

from tailrace.cli import main
from tailrace.config import BrokerConfig, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError
from tailrace.model import Message
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_request_mode import MessageRequestModeManager
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.store.recovery.quarantine import Quarantine
from tailrace.store.retention.forced_deletions import ForcedDeletions

HANG_S = 30
SIZES = {
    "mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 100, "max_index_num": 400, "timer_precision_ms": 60_000,
}
SETTINGS = """mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
timerPrecisionMs=60000
"""
CONFIG = StoreConfig(**SIZES)
TERABYTE = 1 << 40
COUNT = 150
real_open = os.open
# Otherwise every call of main() makes all commands again, which takes longer than most commands take.
typer.main.get_command = functools.cache(typer.main.get_command)


def copy_sparse(source: str, target: str) -> None:
    """Copy the data of a file and leave its holes holes, so that the copy takes no more reads than the file did.

    The timer wheel and the timer log have 143 MB and a few pages of data. ``shutil.copyfile`` writes all the zeros,
    and each command that opens the copy would read them.
    """
    files = OsFileSystem()
    old, new = files.open(source), files.open(target, writable=True, create=True)
    new.truncate(0)
    new.truncate(old.size())
    for low, high in old.data_ranges(0, old.size()):
        new.pwrite(old.pread(high - low, low), low)
    old.close()
    new.close()
    shutil.copystat(source, target)


def make_store(root: Path, state: str) -> Path:
    """A store with every kind of file, below ``root``."""
    made = root / "made"
    with MessageStore.open(made, config=CONFIG) as store:
        for number in range(COUNT):
            store.put(Message(topic="orders", body=bytes(700), keys=[f"k{number}"]))
        store.put(Message(topic="later", body=b"timer", delay=3_000.0))
        store.put(Message(topic="level", body=b"level", delay_level=5))
        store.wait_dispatched()
        files, config_dir, clock = store.file_system, store.config_dir, SystemClock()
        groups = SubscriptionGroupManager(files, config_dir, BrokerConfig(), clock)
        groups.ensure_system_groups()
        offsets = ConsumerOffsetManager(files, config_dir, clock)
        offsets.commit("g", "orders", 0, 7)
        offsets.persist()
        modes = MessageRequestModeManager(files, config_dir)
        modes.change(modes.setting("orders", "g", "POP", 0))
        ForcedDeletions(files, str(made)).note({"file": "x"})
        Quarantine(clock, files, f"{made}/tailrace/quarantine").keep("f", 0, 0, b"evidence", "test")
        wheel = [made / name for name in ("timerwheel", "config/timercheck", "config/timermetrics", "checkpoint")]
        until = time.monotonic() + HANG_S
        while not all(path.exists() for path in wheel) or store.stats()["timerPending"] < 1:
            assert time.monotonic() < until, "the services of timers have not written their files"
            store.timer_services.persist_metrics()  # its service does so after 5 s
            time.sleep(0.05)
        store.flush()
        if state == "crashed":
            shutil.copytree(made, root / "pristine", copy_function=copy_sparse)
    if state == "clean":
        made.rename(root / "pristine")
    (root / "pristine/tailrace/serve.json").write_text('{"pid": 1, "broker": "127.0.0.1:1"}')
    return root / "pristine"


def command(*arguments: str) -> tuple[int, str]:
    """Run a command here: its exit code and everything it said."""
    said = io.TextIOWrapper(io.BytesIO(), write_through=True)
    sys.argv = ["tailrace", *arguments]
    logging.getLogger().handlers.clear()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        except BaseException as error:
            return 99, f"{type(error).__name__}: {error}"
    return code or 0, said.buffer.getvalue().decode()


def contents(root: Path) -> tuple[list[bytes], int]:
    """Messages of the topic, and how many timers are pending."""
    with MessageStore.open(root, config=CONFIG, parts=StoreParts(services=False, must_write=True)) as store:
        bodies = [m.body for queue in range(4) for m in store.read("orders", queue)]
        pending = sum(1 for _ in store.timers())
    return sorted(bodies), pending


def opened(root: Path) -> tuple[int, str]:
    """Open, put a message and close, as a server does; as a command's result."""
    said = io.StringIO()
    logging.getLogger().handlers[:] = [logging.StreamHandler(said)]
    try:
        with MessageStore.open(root, config=CONFIG, parts=StoreParts(services=False)) as store:
            if store.read_only:
                return 1, store.read_only
            for manager in (
                SubscriptionGroupManager(store.file_system, store.config_dir, BrokerConfig(), SystemClock()),
                ConsumerOffsetManager(store.file_system, store.config_dir, SystemClock()),
                MessageRequestModeManager(store.file_system, store.config_dir),
            ):
                manager.load()
            store.put(Message(topic="orders", body=b"new"))
            store.flush()
    except (StoreError, OSError) as error:
        return 1, str(error) if isinstance(error, StoreError) else f"{error.filename}: {error.strerror}"
    except BaseException as error:
        return 99, f"{type(error).__name__}: {error}"
    return 0, said.getvalue()


def make_odd(path: Path, oddity: str) -> None:
    """Replace a file."""
    if oddity == "huge":
        os.truncate(path, TERABYTE)
        return
    if oddity == "unreadable":
        path.chmod(0)

        def refusing(name, *arguments, **named):
            if os.path.realpath(os.fspath(name)) == str(path.resolve()):
                raise PermissionError(13, "Permission denied", os.fspath(name))
            return real_open(name, *arguments, **named)

        os.open = refusing  # root may read everything
        return
    if oddity.startswith("named-"):
        length = next((f.stat().st_size for f in sorted(path.parent.glob("0*"))), 0)
        path.write_bytes(bytes(length))
        return
    if oddity == "fifo-for-directory":
        shutil.rmtree(path)
        os.mkfifo(path)
        return
    path.unlink()
    match oddity:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
            (path / "of-others").write_text("kept")
        case "dangling":
            path.symlink_to(path.parent / "no-such-directory" / "file")
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            here = os.getcwd()
            os.chdir(path.parent)  # the path of a socket is short
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
            os.chdir(here)
        case _:
            raise AssertionError(oddity)


def failures(root: Path, pristine: Path, name: str, oddity: str, settings: str) -> list[str]:
    """What is wrong with the behaviour of one case."""
    store, wrong = root / "store", []
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(pristine, store, copy_function=copy_sparse)
    odd = store / name
    make_odd(odd, oddity)
    # A file that should not be there may be why another one of its directory looks damaged.
    named = str(odd.parent if oddity.startswith("named-") else odd)
    writes: list[tuple[str, int, str]] = []
    try:
        for words in (("verify",), ("dump",), ("dump", "--raw"), ("timers",), ("recover",), ("open",)):
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            began = time.monotonic()
            if words == ("open",):
                code, said = opened(store)
            else:
                code, said = command(words[0], str(store), *words[1:], "--config", settings)
            faulthandler.cancel_dump_traceback_later()
            if time.monotonic() - began > HANG_S / 2:
                wrong.append(f"{words} took {time.monotonic() - began:.0f} s")
            if code not in {0, 1} or "Traceback" in said:
                wrong.append(f"{words} ended with {code}: {said[-1000:]}")
            elif code and named not in said:
                wrong.append(f"{words} does not name the path: {said[-600:]}")
            if words[0] in {"recover", "open"}:
                writes.append((words[0], code, said))
    finally:
        os.open = real_open
    others = odd / "of-others"
    if oddity == "directory" and (not others.exists() or others.read_text() != "kept"):
        wrong.append("a directory's files are gone")
    new = [b"new"] if writes[-1][1] == 0 else []
    if any(code for _, code, _ in writes):  # refused: with the right file back, all is there
        if odd.is_dir() and not odd.is_symlink():
            shutil.rmtree(odd)
        else:
            odd.unlink(missing_ok=True)
        if oddity.startswith("named-"):
            pass  # it was never there
        elif (pristine / name).is_dir():
            shutil.copytree(pristine / name, odd, copy_function=copy_sparse)
        else:
            copy_sparse(str(pristine / name), str(odd))
    found, pending = contents(store)
    bodies, timers = expected
    if found != sorted(bodies + new):
        wrong.append(f"{len(found)} of {len(bodies + new)} messages, {writes}")
    if pending != timers:
        wrong.append(f"{pending} of {timers} timers, {writes}")
    return wrong


def run(root: Path, state: str, oddity: str) -> None:
    """Every file of the store; prints failures and the number of cases."""
    global expected
    pristine = make_store(root, state)
    (root / "settings").write_text(SETTINGS)
    shutil.copytree(pristine, root / "store", copy_function=copy_sparse)
    expected = contents(root / "store")
    assert len(expected[0]) == COUNT
    of_directories = oddity == "fifo-for-directory"
    names = sorted(
        str(path.relative_to(pristine)) for path in pristine.rglob("*") if path.is_dir() == of_directories)
    if oddity.startswith("named-"):
        places = {str(Path(name).parent) for name in names if Path(name).name.isdigit()}
        names = sorted(f"{place}/{oddity.removeprefix('named-')}" for place in places)
    for name in names:
        print(json.dumps({"case": name}), flush=True)
        for wrong in failures(root, pristine, name, oddity, str(root / "settings")):
            print(json.dumps({"file": name, "wrong": wrong}), flush=True)
    print(json.dumps({"cases": len(names), "names": names}), flush=True)


expected: tuple[list[bytes], int] = ([], 0)
"""Messages and timers of the store as it was made."""

if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
