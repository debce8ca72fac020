"""``tailrace sql``: tables, output, errors, and what SQL may not do."""

import csv
import io
import json
import subprocess
import sys

import pytest

from tailrace.cli.sql import sql as command
from tailrace.config import StoreConfig
from tailrace.dataset import sql as queries
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import CorruptionError, MissingPackageError, StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing.sim_clock import SimClock

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

SEGMENT = 64 << 10
COUNT = 200
NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sql") / "s"
    with MessageStore.open(
        str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT),
        parts=StoreParts(clock=SimClock(NOW), services=False),
    ) as store:
        for number in range(COUNT):
            store.put(Message(
                topic="orders" if number % 4 else "paid", body=b'{"price": %d}' % number * 40, keys=[f"k{number}"],
                properties={"n": str(number)}), queue_id=number % 2)
        store.put(Message(topic="orders", body=b"\xff\x00later", delay=3600, keys=["later"]))
    return path


@pytest.fixture(scope="module")
def tables(path):
    return queries.tables_of(path)


@pytest.fixture
def ask(tables):
    def answer(sql, **options):
        with queries.query(tables, sql, **options) as rows:
            return rows.read_all().to_pylist()
    return answer


def test_messages_queues_segments_and_timers_are_tables(ask, path):
    assert ask("select topic, count(*) as n from messages where topic in ('orders', 'paid') group by 1 order by 1") == [
        {"topic": "orders", "n": 150}, {"topic": "paid", "n": 50}]
    assert ask("select topic, queueId, minOffset, maxOffset from queues where topic = 'paid'") == [
        {"topic": "paid", "queueId": 0, "minOffset": 0, "maxOffset": 50}]
    [first, *_] = ask("select * from segments order by segment")
    assert (first["segment"], first["until"], first["inLog"], first["inArchive"]) == (0, SEGMENT, True, None)
    assert first["firstStored"].timestamp() * 1000 == NOW
    [timer] = ask("select * from timers")
    assert (timer["topic"], timer["keys"], timer["state"]) == ("orders", "later", "overdue")  # by the real clock
    assert ask("select properties['n'] as n, keys[1] as k from messages where queueOffset = 3 and topic = 'paid'") == [
        {"n": "12", "k": "k12"}]
    assert ask("select count(*) as n from messages join queues using (topic, queueId)") == [
        {"n": ask("select count(*) as n from messages")[0]["n"]}]


@pytest.mark.parametrize("sql", [
    "select * from read_csv('/etc/passwd')", "select * from read_blob('/etc/passwd')", "select * from glob('/*')",
    "copy (select 1) to 'x.csv'", "attach 'x.db'", "install httpfs", "load httpfs", "set threads = 1",
    "set enable_external_access = true", "select * from '/etc/passwd'", "select * from 'http://127.0.0.1:1/x.csv'",
    "export database 'x'", "select * from secret_of_the_program", "select * from duckdb_secrets()",
])
def test_sql_reads_and_writes_nothing_but_the_tables(ask, sql, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    secret_of_the_program = pa.table({"a": [1]})
    with pytest.raises(StoreError, match=r"^SQL: ") as error:
        ask(sql)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    del secret_of_the_program


def test_files_are_read_if_that_is_asked_for(ask, tmp_path):
    (tmp_path / "prices.csv").write_text("key,price\nk4,7\n")
    sql = f"select price from messages join '{tmp_path}/prices.csv' on key = keys[1]"
    assert ask(sql, external_access=True) == [{"price": 7}]


@pytest.mark.parametrize(("sql", "text"), [
    ("selec 1", 'SQL: Parser Error: syntax error at or near "selec"'),
    ("select x from messages", 'Referenced column "x" not found in FROM clause! Candidate bindings'),
    ("select * from segmnts", "Table with name segmnts does not exist"),
    ("", "SQL: the last statement has no rows"), ("-- nothing", "SQL: the last statement has no rows"),
])
def test_wrong_sql_is_one_line(ask, sql, text):
    with pytest.raises(StoreError) as error:
        ask(sql)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_record_is_named_as_other_commands_name_it(tmp_path):
    with MessageStore.open(str(tmp_path / "s"), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        place = [store.put(Message(topic="a", body=bytes(200))).phy_offset for _ in range(3)][1]
    file = next((tmp_path / "s" / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[place + 120] ^= 1
    file.write_bytes(data)
    count = "select count(*) as n from messages"
    tables = queries.tables_of(tmp_path / "s")
    with pytest.raises(CorruptionError, match="damaged record"), queries.query(tables, count) as rows:
        rows.read_all()
    with queries.query(queries.tables_of(tmp_path / "s", mode="DROPMALFORMED"), count) as rows:
        assert rows.read_all().to_pylist() == [{"n": 2}]


def test_without_duckdb_the_extra_is_named(tables, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPackageError, match=r"'.\[sql\]'"), queries.query(tables, "select 1"):
        pass


def printed(capsys, path, sql, **options):
    given = {"form": "", "out": None, "archive": None, "skip_damaged": False, "external_access": False, "config": None}
    command(path, sql, **{**given, **options})
    return capsys.readouterr().out


TYPES = """select 170141183460469231731687303715884105727::hugeint as big, 1.50::decimal(9, 2) as price,
    null as nothing, timestamptz '2026-01-02 03:04:05.678+01' as at, date '2026-01-02' as day, true as yes,
    'a,"b' as text, '\\xFFx'::blob as bytes, [1, null] as list, {'a': 1} as pair, map {'k': 'v'} as map,
    interval 2 days as wait"""
AS_JSON = {
    "big": "170141183460469231731687303715884105727", "price": "1.50", "nothing": None,
    "at": "2026-01-02T02:04:05.678Z", "day": "2026-01-02", "yes": True, "text": 'a,"b', "bytes": "\\xffx",
    "list": [1, None], "pair": {"a": 1}, "map": {"k": "v"}}


def test_every_type_has_a_form_in_json_and_csv(capsys, path):
    found = json.loads(printed(capsys, path, TYPES))
    assert "2" in found.pop("wait")
    assert found == AS_JSON
    [row] = csv.DictReader(io.StringIO(printed(capsys, path, TYPES, form="csv")))
    assert (row["big"], row["nothing"], row["text"], row["list"]) == (AS_JSON["big"], "", 'a,"b', "[1,null]")
    table = printed(capsys, path, TYPES, form="table")
    assert "at       2026-01-02T02:04:05.678Z\n" in table  # too wide for a table
    assert "nothing  null\n" in table
    assert printed(capsys, path, "select 1 as n, null as no", form="table").split() == ["n", "no", "1", "null"]


def test_files_get_the_same_rows_and_no_half_file_stays(capsys, path, tmp_path):
    sql = "select topic, queueOffset, storeTimestamp from messages where topic = 'paid' order by queueOffset"
    rows = [json.loads(line) for line in printed(capsys, path, sql).splitlines()]
    assert len(rows) == 50
    for name in ("a.csv", "a.json", "a.parquet"):
        assert not printed(capsys, path, sql, out=tmp_path / name)
    assert [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()] == rows
    lines = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert [int(line["queueOffset"]) for line in lines] == [*range(50)]
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "a.parquet")
    assert table["queueOffset"].to_pylist() == [*range(50)]
    assert table.schema.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
    before = (tmp_path / "a.csv").read_text()
    with pytest.raises(Exception, match="1"):  # typer.Exit(1)
        printed(capsys, path, sql, out=tmp_path / "a.csv")
    assert capsys.readouterr().err == f"tailrace: {tmp_path / 'a.csv'} exists\n"
    assert (tmp_path / "a.csv").read_text() == before
    with pytest.raises(Exception, match="1"):
        printed(capsys, path, "select error('late') from messages", out=tmp_path / "b.csv")
    assert "late" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"a.csv", "a.json", "a.parquet"}


def test_a_table_is_cut_after_a_thousand_rows_and_says_so(capsys, path):
    command(path, "select range as n from range(1500)", form="table", out=None, archive=None, skip_damaged=False,
            external_access=False, config=None)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1001
    assert "only the first 1,000 rows are shown" in err


@pytest.mark.parametrize(("options", "text"), [
    ({"form": "xml"}, "--format 'xml' is not one of table, csv, json, parquet"),
    ({"form": "parquet"}, "--format parquet needs --out FILE"),
])
def test_wrong_options_end_with_a_usage_error(capsys, path, options, text):
    with pytest.raises(Exception, match="2"):
        printed(capsys, path, "select 1", **options)
    assert text in capsys.readouterr().err


def test_a_command_that_stops_after_some_rows_ends_cleanly(path):
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "sql", str(path), "-"], input="select topic from messages limit 2",
        capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 2)


def test_an_archive_has_queues_and_segments(tmp_path):
    job = pytest.importorskip("tailrace.spark.archive.job")
    settings = StoreConfig(mapped_file_size_commit_log=SEGMENT)
    with MessageStore.open(str(tmp_path / "s"), config=settings) as store:
        for _ in range(300):
            store.put(Message(topic="a", body=bytes(600)))
        store.wait_dispatched(60_000)
    with job.ArchiveJob(
        str(tmp_path / "s"), str(tmp_path / "a"), job.local_runner(OsFileSystem()),
        options=job.ArchiveOptions(piece_bytes=1 << 16)) as running:
        running.step()
    with queries.query(queries.tables_of(tmp_path / "a"), (
        "select sum(maxOffset - minOffset)::bigint as n, (select count(*) from messages) as m, "
        "(select bool_and(inArchive and not inLog) from segments) as there from queues")) as rows:
        [found] = rows.read_all().to_pylist()
    assert found["n"] == found["m"] > 0
    assert found["there"]
    with pytest.raises(StoreError, match="timers does not exist"), queries.query(
        queries.tables_of(tmp_path / "a"), "select * from timers"):
        pass
    with queries.query(queries.tables_of(tmp_path / "s", archive=tmp_path / "a"), (
        "select count(*) as n, (select count(*) from segments where inArchive = inLog) as both, "
        "(select count(*) from timers) as timers from messages")) as rows:
        assert rows.read_all().to_pylist() == [{"n": 300, "both": 0, "timers": 0}]
