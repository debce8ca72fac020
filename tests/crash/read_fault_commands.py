"""Commands on a directory that no server has open, in which one read fails.

A command fails with an error that names a file, or its result is the one without a fault. A command that reads changes
nothing. One that writes leaves a directory in which the next run completes, with the result of a run without a fault.
"""

from __future__ import annotations

import errno
import importlib.util
import sys
from pathlib import Path

from flat_open import flat_open
from read_there import read_there

from tailrace.doctor.backup import back_up, read_manifest, verify_backup
from tailrace.doctor.disk_usage import disk_usage
from tailrace.doctor.dump import KINDS, dump, query
from tailrace.doctor.retention import explain_directory, plan_free
from tailrace.doctor.timers import pending_timers
from tailrace.doctor.verify import verify
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import StoreError
from tailrace.store.directory import StoreDirectory

_spec = importlib.util.spec_from_file_location("read_faults_of_commands", Path(__file__).with_name("read_faults.py"))
_faults = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _faults
_spec.loader.exec_module(_faults)

ROOT, CONFIG, ERRORS, ViolationError = _faults.ROOT, _faults.CONFIG, _faults.ERRORS, _faults.ViolationError


def directory(files, **given):
    return StoreDirectory(ROOT, config=CONFIG, file_system=files, **given)


def run_dump(files, clock):
    del clock
    return list(dump(directory(files), only=(*KINDS, "checkpoint", "index", "timers"), body=True))


def run_query(files, clock):
    del clock
    found = directory(files, index=True)
    return [list(query(found, topic, f"k{number}")) for topic in ("a", "b") for number in range(60, 90, 7)]


def run_timers(files, clock):
    del clock
    return [timer.line(0) for timer in pending_timers(directory(files))]


def run_topics(files, clock):
    del clock
    return [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in directory(files).queues()]


def run_verify(files, clock):
    del clock
    return list(verify(ROOT, CONFIG, files))


def run_usage(files, clock):
    del clock
    return disk_usage(files, ROOT, CONFIG)


def run_retention(files, clock):
    return str(explain_directory(ROOT, CONFIG, clock, files)), str(plan_free(ROOT, CONFIG, clock, files, 1 << 20))


def run_read_backup(files, clock):
    del clock
    return str(verify_backup("/backup", file_system=files))


READING = {
    "dump": run_dump, "query": run_query, "timers list": run_timers, "topic list": run_topics, "verify": run_verify,
    "disk usage": run_usage, "retention": run_retention, "backup verify": run_read_backup,
}


def contents(files, clock, **given):
    """What a directory has after an open."""
    with _faults.small_wheel(), flat_open(
        ROOT, config=CONFIG, services=False, clock=clock, file_system=files, entropy=SeededEntropy(5), must_write=True,
        **given,
    ) as store:
        return {
            (topic, queue_id): [(one.queue_offset, one.body) for one in read_there(store, topic, queue_id)]
            for topic, queue_id, _, _ in store.queues() if not topic.startswith("%LMQ%")}


def run_recover(files, clock):
    return contents(files, clock)


def run_repair(files, clock):
    return contents(files, clock, rebuild=True)


def run_backup(files, clock):
    back_up(ROOT, "/backup", CONFIG, file_system=files, clock=clock)
    return sorted(entry.path for entry in read_manifest("/backup", files).files if "flushed" not in entry.path)


WRITING = {"recover": run_recover, "repair": run_repair, "backup": run_backup}


def made(*, clean):
    """A directory as a stop or a kill leaves it, with a backup; its files and its clock."""
    life = _faults.Life()
    life.open()
    life.topics()
    for number in range(12):
        for part in range(3):
            life.put("ab"[part % 2], part % 2, lmq=number % 2 == 0)
        life.put("a", 0, delay=30.0)
        life.put_inner()
        life.put_value()
        if number < 9:
            life.run(500)
    files = life.files
    if clean:
        life.close()
    back_up(ROOT, "/backup", CONFIG, file_system=files.killed(), clock=life.clock)
    files = files.killed()
    back_up(ROOT, "/backup", CONFIG, file_system=files, clock=life.clock)
    files.cold = True
    return files, life.clock


def image(files):
    """All names and bytes except those of the lock."""
    return {path: bytes(data.volatile) for path, data in files._files.items() if not path.endswith("lock")}


class Runs:
    """Runs of one command on copies of one directory."""

    def __init__(self, name, *, clean):
        self.name, self.reads_only = name, name in READING
        self.run = READING.get(name) or WRITING[name]
        self.files, self.clock = made(clean=clean)
        self.before = image(self.files)
        files, first = self.copy(), {}
        files.before_read = lambda number, *_: first.setdefault(_faults.caller(), number)
        self.wanted = self.run(files, self.clock)
        self.count = files.reads
        self.places = sorted(first.values())
        """The first read of each place of the code that reads."""

    def copy(self):
        files = self.files.killed()
        files.cold = True
        return files

    def fail_at(self, place, error_number):
        """Let one read fail. Return True if the command fails; raises ViolationError."""
        files, failed = self.copy(), []

        def before_read(number, _name, path, _pos, _n):
            if number == place:
                failed.append(path)
                raise OSError(error_number, "injected", path)

        files.before_read = before_read
        case = f"{self.name}: read {place} of {self.count} errno={errno.errorcode[error_number]}"
        error = None
        try:
            found = self.run(files, self.clock)
        except (OSError, StoreError) as raised:
            error = raised
            if "/" not in str(error):
                raise ViolationError(f"{case}: {error!r} names no file") from error
        except Exception as raised:
            raise ViolationError(f"{case} {failed}: {raised!r}") from raised
        if error is None and found != self.wanted:
            raise ViolationError(f"{case} {failed}: another result, and no error")
        if self.reads_only and image(files) != self.before:
            raise ViolationError(f"{case} {failed}: a command that reads changed the directory")
        files.before_read = None
        if files.locked:
            raise ViolationError(f"{case} {failed}: the lock is held")
        again = self.run(files, self.clock)
        if again != self.wanted:
            raise ViolationError(f"{case} {failed}: the next run has another result")
        return error is not None


def sweep(name, step=1, first=0, *, clean):
    """Let reads of a command fail, every ``step``-th of them. Return the numbers of cases and of failed commands."""
    runs = Runs(name, clean=clean)
    places = range(first % step, runs.count, step)
    failed = sum(runs.fail_at(place, ERRORS[(place + place // step) % len(ERRORS)]) for place in places)
    return len(places), failed
