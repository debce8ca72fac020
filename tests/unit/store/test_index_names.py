"""Index files are named in the order of the log."""

from tailrace import StoreConfig
from tailrace.store.index_service import IndexService, index_file_name
from tailrace.testing import CrashFileSystem, SimClock

T = 1_700_000_000_123


def test_a_name_that_has_become_free_is_not_given_to_a_later_file():
    files = CrashFileSystem()
    made = IndexService(
        SimClock(), files, StoreConfig(max_hash_slot_num=4, max_index_num=8), "/index")
    first = made._create(None, T)
    second = made._create(first, T)
    files.remove(first.path)
    made.files = made.files[1:]
    third = made._create(second, T)
    earlier = made._create(third, T - 86_400_000)
    names = [file.path.rpartition("/")[2] for file in (first, second, third, earlier)]
    assert names == [index_file_name(T + n) for n in range(4)]
    assert names == sorted(names)
