"""Files of a process that dies at a given change."""

from tailrace.env.filesystem import OsFileSystem

FILES = OsFileSystem()


class Killed(BaseException):
    """What a test throws where a process would have died."""


class KilledFile:
    def __init__(self, file, owner):
        self._file, self._owner = file, owner

    def __getattr__(self, name):
        if name in {"pwrite", "truncate", "sync_data"}:
            self._owner.count(name)
        return getattr(self._file, name)


class KilledFileSystem:
    """The machine's files until the given change, which is not made, nor any later one."""

    def __init__(self, at):
        self.left = at
        self.done = 0

    def count(self, name):
        self.done += 1
        self.left -= 1
        if self.left < 0:
            raise Killed(name)

    def open(self, path, *, writable=False, create=False, exclusive=False):
        if create:
            self.count("create")
        return KilledFile(FILES.open(path, writable=writable, create=create, exclusive=exclusive), self)

    def __getattr__(self, name):
        if name in {"rename", "remove", "rmdir", "makedirs", "sync_dir"}:
            self.count(name)
        return getattr(FILES, name)
