"""A hole in the log and a lost queue file together cost only the messages in the hole."""

import importlib.util
import pathlib
import random
import shutil

import pytest

_spec = importlib.util.spec_from_file_location("stores", pathlib.Path(__file__).with_name("stores.py"))
stores = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stores)


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("noise", [b"", b"\xff" * 64, random.Random(1).randbytes(200)],
                         ids=["whole", "ones", "noise"])
@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("hole", [range(5, 6), range(6)], ids=["inside", "at the start"])
def test_records_behind_a_hole_are_found_without_the_first_queue_files(
    tmp_path, killed, gone, hole, noise
):
    path = tmp_path / "s"
    stores.make(path, 80, size=300)
    for _, size, file, at in [stores.records(path)[number] for number in hole]:
        stores.patch(file, at, bytes(size))
    for _ in range(gone):
        stores.queue_file(path).unlink()
    stores.patch(stores.queue_file(path), 0, noise)
    shutil.rmtree(path / "tailrace")
    if killed:
        (path / "abort").write_text("1")
    left = [n for n in range(80) if n not in hole]
    for _ in range(2):
        with stores.opened(path) as store:
            assert stores.numbers(store) == left
            assert stores.has_keys(store, left)
