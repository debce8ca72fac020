"""Messages of the segment that is still written are in the table once, whenever a job is killed."""

import contextlib
import shutil

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
from lake_tables import (
    add,
    archive,
    archived_until,
    assert_fresh,
    assert_whole,
    data_files,
    fill,
    lake,
    manifests_of,
    paths_of,
    rows_of,
)

from tailrace.spark.lake import commit as commit_module
from tailrace.spark.lake.job import local_runner

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]


def test_messages_of_the_last_segment_are_replaced_when_it_is_sealed(tmp_path, caplog):
    caplog.set_level("INFO")
    path, target = tmp_path / "s", tmp_path / "a"
    for count, ranges in ((20, 1), (20, 0), (40, 1)):
        fill(path, count - 20, count) if ranges else None
        archive(path, target, lag_ms=1)
        done = add(path, target)
        assert (done.segments, done.ranges, done.waits) == (0, ranges, "")
        assert_fresh(path, target, count)
    assert caplog.text.count("added rows to a table table=tailrace.messages until=") == 2
    assert "files=1 count=20" in caplog.text
    assert len(rows_of(target, "raw")) == 0, "raw has sealed segments only"
    before = set(paths_of(target))
    fill(path, 40, 200)
    archive(path, target, lag_ms=1)
    done = add(path, target)
    assert (done.segments > 1, done.ranges) == (True, 1)
    assert_fresh(path, target, 200)
    assert not before & set(paths_of(target))
    with lake(target) as tables:
        mark = tables.messages.refresh()
        assert mark.until == archived_until(target) < mark.open_until
        assert 0 < mark.open_rows < 200
    fill(path, 200, 400)
    archive(path, target)
    add(path, target)
    assert_whole(path, target)
    with lake(target) as tables:
        assert tables.messages.refresh().open_until == 0


def test_rows_of_ranges_that_another_program_has_rewritten_are_replaced(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    fill(path, until=130)
    archive(path, target, lag_ms=1)
    add(path, target)
    with lake(target) as tables:
        table = tables.messages.table
        old = commit_module.files_of_ranges(tables.messages, tables.messages.refresh().until)
        names = {one.file_path: one.file_path.replace("/p0", "/compacted-p0") for one in old}
        for name, new in names.items():
            shutil.copy(name.removeprefix("file://"), new.removeprefix("file://"))
        with table.transaction() as change:
            with change.update_snapshot().overwrite() as swap:
                for one in old:
                    swap.delete_data_file(one)
            change.add_files([*names.values()])
    fill(path, 130, 300)
    archive(path, target)
    add(path, target)
    assert_whole(path, target)


@pytest.mark.parametrize("every", [29, pytest.param(2, marks=pytest.mark.long)])
def test_a_kill_while_ranges_are_added_or_replaced_leaves_each_row_once(tmp_path, killed, monkeypatch, every):
    from tailrace.spark.lake.table_io import TableIO

    path, target, begun = tmp_path / "s", tmp_path / "a", tmp_path / "begun"
    fill(path, until=30)
    archive(path, target, lag_ms=1)
    add(path, target)
    fill(path, 30, 100)
    archive(path, target, lag_ms=1)
    assert len(manifests_of(target)) == 1
    shutil.copytree(target, begun)
    seen = set()
    for at in range(0, 400, every):
        shutil.rmtree(target)
        shutil.copytree(begun, target)
        files = killed.KilledFileSystem(at)
        monkeypatch.setattr(TableIO, "file_system", files)
        with contextlib.suppress(killed.Killed):
            add(path, target, at_once=1, runner=local_runner(files))
        monkeypatch.undo()
        found = sorted(int(row["body"].split()[0]) for row in rows_of(target).to_pylist())
        assert found == list(range(len(found)))
        seen.add(len(found))
        add(path, target)
        assert_fresh(path, target, 100)
        assert set(paths_of(target)) <= data_files(target)[0]
        if files.left >= 0:
            break
    assert files.left >= 0, "a run was not killed at last"
    assert min(seen) == 30
    assert every > 2 or len(seen) > 2, "some kills came between two commits"
