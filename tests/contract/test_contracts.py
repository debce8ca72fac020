"""The contracts of file systems and stores, on the real ones and on the simulated ones."""

import pytest
from flat_open import flat_open

from tailrace import StoreConfig
from tailrace.config import FlushDiskType
from tailrace.env.entropy import SeededEntropy
from tailrace.env.filesystem import LockState, OsFileSystem
from tailrace.env.memory_overlay import OverlayFileSystem
from tailrace.env.sync_guard import SyncGuard
from tailrace.testing import CrashFileSystem, FaultyFileSystem, SimClock, SimScheduler
from tailrace.testing.contracts import FileSystemContract, StoreContract

SIZES = {
    "mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 16, "max_index_num": 64, "commit_log_allocate_step": 4096,
    "max_message_size": 8192}


@pytest.fixture
def root(request, tmp_path):
    return str(tmp_path) if request.cls.on_disk else "/store"


class TestOsFileSystem(FileSystemContract):
    on_disk = True

    def make(self, root):
        return OsFileSystem()


class TestCrashFileSystem(FileSystemContract):
    on_disk = False

    def make(self, root):
        files = CrashFileSystem()
        files.makedirs(root)
        return files


class TestFaultyFileSystemWithoutFault(FileSystemContract):
    on_disk = True

    def make(self, root):
        return FaultyFileSystem(OsFileSystem())


class TestSyncGuard(FileSystemContract):
    on_disk = True

    def make(self, root):
        return SyncGuard(OsFileSystem(), (), [].append)


class OverlayContract(FileSystemContract):
    def test_a_lock_whose_name_is_gone_is_made_again(self, root):
        """A name that is removed here stays below, where the lock is."""
        files = self.make(root)
        handle = files.lock(f"{root}/lock")
        files.remove(f"{root}/lock")
        assert handle.check() is LockState.HELD
        handle.release()


class TestOverlayOnDisk(OverlayContract):
    on_disk = True

    def make(self, root):
        return OverlayFileSystem(OsFileSystem())


class TestOverlayOfSimulatedFiles(OverlayContract):
    on_disk = False

    def make(self, root):
        files = CrashFileSystem()
        files.makedirs(root)
        return OverlayFileSystem(files)


class TestStoreOnDisk(StoreContract):
    on_disk = True

    def open(self, root, **options):
        return flat_open(root, config=StoreConfig(**SIZES), **options)


class TestSyncFlushStoreOnDisk(StoreContract):
    on_disk = True

    def open(self, root, **options):
        config = StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH, **SIZES)
        return flat_open(root, config=config, **options)


class TestStoreWithoutServices(StoreContract):
    on_disk = True

    def open(self, root, **options):
        return flat_open(root, config=StoreConfig(**SIZES), services=False, **options)


class TestSimulatedStore(StoreContract):
    on_disk = False

    @pytest.fixture(autouse=True)
    def _world(self):
        self.files, self.clock, self.seed = CrashFileSystem(), SimClock(), 0

    def open(self, root, **options):
        self.seed += 1
        self.scheduler = SimScheduler(self.clock, SeededEntropy(self.seed))
        return flat_open(
            root, config=StoreConfig(**SIZES), clock=self.clock, file_system=self.files, scheduler=self.scheduler,
            entropy=SeededEntropy(self.seed), **options)

    def settle(self, store):
        while store.dispatch_behind_bytes:
            assert self.scheduler.run(10)
