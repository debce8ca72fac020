"""Files in memory that a crash can take away: what a sync did not cover is kept page by page, or not.

Names, and the lengths of the files that have them, are durable after ``sync_dir`` (a journal orders
them); bytes are durable after ``sync_data``. Every call that changes something is an operation, and
so is every look at the clock, so that a crash falls between stores through a mapping as well.
"""

from __future__ import annotations

import errno
import posixpath
from dataclasses import dataclass

PAGE, SECTOR = 4096, 512


class Crash(BaseException):
    """The machine is gone; nothing in the program may handle it."""


@dataclass
class Stat:
    size: int
    allocated: int
    mtime_ms: int
    is_dir: bool


@dataclass
class Usage:
    total: int = 1 << 40
    free: int = 1 << 39
    usable: int = 1 << 39


class Node:
    def __init__(self, data=b""):
        self.volatile = bytearray(data)
        self.durable = bytes(data)
        self.durable_size = len(data)


class CrashMapping:
    def __init__(self, node, size):
        self.view = memoryview(node.volatile)[:size]

    def close(self):
        self.view.release()


class CrashFile:
    def __init__(self, fs, path, node):
        self.fs, self.path, self.node = fs, path, node

    def size(self):
        return len(self.node.volatile)

    def pread(self, n, pos):
        return bytes(self.node.volatile[pos : pos + n])

    def data_ranges(self, start, until):
        until = min(until, len(self.node.volatile))
        pages = range(start - start % PAGE, until, PAGE)
        return [
            (max(at, start), min(at + PAGE, until)) for at in pages
            if any(self.node.volatile[max(at, start) : min(at + PAGE, until)])
        ]

    def pwrite(self, data, pos):
        data = bytes(data)
        done = 0
        while done < len(data):  # a write over several pages can be cut between them
            self.fs.op("pwrite", self.path)
            n = min(len(data) - done, PAGE - (pos + done) % PAGE)
            self._grow(pos + done + n)
            self.node.volatile[pos + done : pos + done + n] = data[done : done + n]
            done += n

    def _grow(self, size):
        if size > len(self.node.volatile):
            self.node.volatile.extend(bytes(size - len(self.node.volatile)))

    def allocate(self, pos, n):
        self.fs.op("allocate", self.path)
        self._grow(pos + n)

    def truncate(self, size):
        self.fs.op("truncate", self.path)
        if size < len(self.node.volatile):
            del self.node.volatile[size:]
        self._grow(size)

    def map(self, size, *, writable):
        assert size <= len(self.node.volatile), "a mapping behind the end of the file"
        return CrashMapping(self.node, size)

    def sync_data(self):
        self.fs.op("sync_data", self.path)
        self.node.durable = bytes(self.node.volatile)
        self.node.durable_size = len(self.node.volatile)

    def close(self):
        pass


class CrashLock:
    def __init__(self, fs, path):
        self.fs, self.path = fs, path
        fs.locks.add(path)

    def release(self):
        self.fs.locks.discard(self.path)


class CrashFiles:
    """A file system; ``crash_at`` is the number of the operation that never happens.

    ``fail`` maps an operation number to an errno: that operation raises it once.
    """

    def __init__(self, crash_at=None, fail=None):
        self.files, self.durable_names = {}, {}
        self.dirs, self.durable_dirs = {"/"}, {"/"}
        self.locks = set()
        self.ops = 0
        self.crash_at = crash_at
        self.fail = fail or {}
        self.log = []
        self.ms = 1_700_000_000_000

    def op(self, kind, path):
        if self.crash_at is not None and self.ops >= self.crash_at:
            raise Crash
        number, self.ops = self.ops, self.ops + 1
        self.log.append((kind, path))
        code = self.fail.pop(number, None)
        if code is not None:
            raise OSError(code, f"{kind} made to fail", path)

    # -- FileSystem

    def open(self, path, *, writable=False, create=False):
        node = self.files.get(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            assert posixpath.dirname(path) in self.dirs, path
            self.op("create", path)
            node = self.files[path] = Node()
        return CrashFile(self, path, node)

    def exists(self, path):
        return path in self.files or path in self.dirs

    def stat(self, path):
        if path in self.dirs:
            return Stat(0, 0, 0, True)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        size = len(self.files[path].volatile)
        return Stat(size, size, 0, False)

    def list(self, path):
        return sorted(
            posixpath.basename(p) for p in (*self.files, *self.dirs)
            if p != "/" and posixpath.dirname(p) == path
        )

    def makedirs(self, path):
        missing = []
        while path not in self.dirs:
            missing.append(path)
            path = posixpath.dirname(path)
        for name in reversed(missing):
            self.op("mkdir", name)
            self.dirs.add(name)
            self.durable_dirs.add(name)

    def rename(self, old, new):
        self.op("rename", old)
        self.files[new] = self.files.pop(old)

    def remove(self, path):
        self.op("remove", path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.files[path]

    def rmdir(self, path):
        self.op("rmdir", path)
        assert not self.list(path)
        self.dirs.discard(path)

    def sync_dir(self, path):
        self.op("sync_dir", path)
        for name in [n for n in self.durable_names if posixpath.dirname(n) == path]:
            del self.durable_names[name]
        for name, node in self.files.items():
            if posixpath.dirname(name) == path:
                self.durable_names[name] = node
                node.durable_size = len(node.volatile)

    def lock(self, path):
        if path in self.locks:
            return None
        if path not in self.files:
            self.op("create", path)
            self.files[path] = Node(b"lock")
        return CrashLock(self, path)

    def is_locked(self, path):
        return 1 if path in self.locks else None

    def disk_usage(self, path):
        return Usage()

    # -- after a crash

    def crash_clone(self, rng, keep):
        """What a machine finds when it comes up again: ``keep`` of what was not synced."""
        after = CrashFiles()
        after.ms = self.ms
        after.dirs, after.durable_dirs = set(self.dirs), set(self.dirs)
        names = dict(self.durable_names)
        for name, node in self.files.items():  # a name that was never synced may be there or not
            if names.get(name) is not node and rng.random() < keep:
                names[name] = node
        for name in [n for n in names if n not in self.files and rng.random() < keep]:
            del names[name]  # so may a removal
        for name, node in names.items():
            after.files[name] = after.durable_names[name] = Node(self._survivor(node, rng, keep))
        return after

    @staticmethod
    def _survivor(node, rng, keep):
        size = len(node.volatile)
        if size != node.durable_size and rng.random() >= keep:
            size = node.durable_size
        data = bytearray(size)
        data[: min(size, len(node.durable))] = node.durable[:size]
        for at in range(0, min(size, len(node.volatile)), PAGE):
            until = min(at + PAGE, size)
            new = node.volatile[at:until]
            if data[at:until] != new and rng.random() < keep:
                torn = rng.random() < 0.5 and keep < 1
                n = rng.randrange(0, len(new) + 1, SECTOR) if torn else len(new)
                data[at : at + n] = new[:n]
        return data


class CrashClock:
    """Time that a look moves on by a millisecond; a look is a place to crash, too."""

    def __init__(self, fs):
        self.fs = fs

    def now_ms(self):
        self.fs.op("clock", "")
        self.fs.ms += 1
        return self.fs.ms

    def monotonic_ns(self):
        return self.fs.ms * 1_000_000
