"""``tailrace.scan``: the rows of the Spark source, whoever reads them, and only the parts that a filter allows."""

import datetime as dt
import pickle
import random
import subprocess
import sys
import zlib

import pytest

import tailrace
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, CorruptionError, NotAStoreError
from tailrace.formats.commitlog import SysFlag
from tailrace.kernels.properties import encode_properties
from tailrace.model import Message, MessageExtBrokerInner
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing.sim_clock import SimClock

pa = pytest.importorskip("pyarrow")
pc, ds = pytest.importorskip("pyarrow.compute"), pytest.importorskip("pyarrow.dataset")
pytestmark = pytest.mark.slow  # each opens and closes stores
SEGMENT = 64 << 10
COUNT = 300
FIELD = pc.field


def opened(path, **settings):
    return MessageStore.open(str(path), config=StoreConfig(
        mapped_file_size_commit_log=SEGMENT, file_reserved_time=0, **settings))


def fill(path, first=0, until=COUNT):
    with opened(path) as store:
        for number in range(first, until):
            topic, body = ("a", "b", "c")[number % 3], b"%d " % number * 200
            if number % 7 == 0:
                store.put_inner(MessageExtBrokerInner(
                    topic, number % 2, zlib.compress(body), encode_properties({"n": str(number)}),
                    sys_flag=SysFlag.COMPRESSED))
                continue
            store.put(
                Message(topic=topic, body=body, tags="T" if number % 2 else None, keys=["k", f"k{number}"],
                        properties={"n": str(number)}), queue_id=number % 2)
        store.wait_dispatched(60_000)


def archived(path, target):
    job = pytest.importorskip("tailrace.spark.archive.job")
    with job.ArchiveJob(
        str(path), str(target), job.local_runner(OsFileSystem()),
        options=job.ArchiveOptions(piece_bytes=1 << 16)) as running:
        running.step()


def delete(path):
    with opened(path) as store:
        return store.retention.delete_now()


def rows(table):
    return sorted(table.to_pylist(), key=lambda row: row["commitLogOffset"])


def of_spark_source(path, **options):
    pytest.importorskip("pyspark")
    from tailrace.spark.data_source import TailraceDataSource

    reader = TailraceDataSource({"path": str(path), **options}).reader(None)
    return sorted(
        (row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()),
        key=lambda row: row["commitLogOffset"])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("scan") / "s"
    fill(path)
    return path


@pytest.fixture(scope="module")
def every(path):
    return rows(tailrace.scan(path).to_table())


def test_rows_are_those_of_the_spark_source_with_decoded_bodies(path, every):
    assert every == of_spark_source(path, body="decoded")
    assert [row["body"] for row in every] == [b"%d " % number * 200 for number in range(COUNT)]
    assert rows(tailrace.scan(path, decoded=False).to_table()) == of_spark_source(path)


def test_topics_and_columns_are_chosen(path, every):
    found = tailrace.scan(path, topics=["a", "c"], columns=["commitLogOffset", "topic"])
    assert found.schema.names == ["commitLogOffset", "topic"]
    assert rows(found.to_table()) == [
        {"commitLogOffset": row["commitLogOffset"], "topic": row["topic"]} for row in every if row["topic"] != "b"]
    assert tailrace.scan(path, topics="b").count_rows() == COUNT // 3
    assert tailrace.scan(path, columns=["body"]).count_rows() == COUNT


def conditions(every):
    """Conditions on one column, each as an expression of Arrow and as a function of a row."""
    middle, time = every[COUNT // 2]["commitLogOffset"], every[COUNT // 2]["storeTimestamp"]
    return [
        (FIELD("topic") == "a", lambda row: row["topic"] == "a"),
        (FIELD("topic").isin(["b", "none"]), lambda row: row["topic"] == "b"),
        (FIELD("queueId") == pa.scalar(1, pa.int32()), lambda row: row["queueId"] == 1),
        (FIELD("queueOffset") < 20, lambda row: row["queueOffset"] < 20),
        (FIELD("queueOffset") == 31, lambda row: row["queueOffset"] == 31),
        (FIELD("commitLogOffset") >= middle, lambda row: row["commitLogOffset"] >= middle),
        (FIELD("commitLogOffset") == middle, lambda row: row["commitLogOffset"] == middle),
        (FIELD("commitLogOffset") < -1, lambda row: False),
        (FIELD("storeTimestamp") > time, lambda row: row["storeTimestamp"] > time),
        (FIELD("storeTimestamp") <= time, lambda row: row["storeTimestamp"] <= time),
        (FIELD("storeTimestamp") < dt.datetime(2001, 1, 1, tzinfo=dt.UTC), lambda row: False),
        (FIELD("tags") == "T", lambda row: row["tags"] == "T"),
        (FIELD("tags").is_null(), lambda row: row["tags"] is None),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_filter_gives_the_rows_that_pass_it(path, every, seed):
    choose, found = random.Random(seed), tailrace.scan(path)
    whole = found.to_table()
    for _ in range(15):
        (one, holds), (other, also) = choose.sample(conditions(every), 2)
        both, either = one & other, one | other
        assert rows(found.to_table(filter=both)) == [row for row in every if holds(row) and also(row)], str(both)
        assert rows(found.to_table(filter=either)) == [row for row in every if holds(row) or also(row)], str(either)
        assert rows(found.to_table(filter=one & ~other)) == rows(whole.filter(one & ~other)), f"{one} and not {other}"


def read_ranges(monkeypatch):
    """The ranges and columns of each read that follows."""
    from tailrace.dataset import store as module

    seen = []
    plan = module.plan_tasks

    def planned(label, directory, ranges, options):
        seen.append((ranges, options.columns))
        return plan(label, directory, ranges, options)

    monkeypatch.setattr(module, "plan_tasks", planned)
    return seen


def test_only_parts_and_columns_that_a_query_needs_are_read(path, every, monkeypatch):
    seen, found = read_ranges(monkeypatch), tailrace.scan(path)
    found.to_table(columns=["body"], filter=(FIELD("topic") == "a") & (FIELD("queueId") == pa.scalar(1, pa.int32())))
    assert seen.pop() == ({("s", "a", 1): (0, 50)}, ("topic", "queueId", "body"))
    place = every[33]["commitLogOffset"]
    found.to_table(columns=["tags"], filter=(FIELD("topic") == "a") & (FIELD("commitLogOffset") < place))
    assert seen.pop() == ({("s", "a", 0): (0, 6), ("s", "a", 1): (0, 5)}, ("topic", "commitLogOffset", "tags"))
    found.to_table(filter=FIELD("storeTimestamp") < dt.datetime(2001, 1, 1, tzinfo=dt.UTC))
    assert seen.pop()[0] == {}
    found.count_rows()
    assert seen.pop()[1] == ("queueOffset",)
    assert len(list(found.get_fragments())) == 6
    assert len(list(found.get_fragments(filter=FIELD("topic") == "a"))) == 2


def test_a_filter_by_time_reads_the_messages_of_that_time_only(tmp_path, monkeypatch):
    clock = SimClock(1_700_000_000_000)
    with MessageStore.open(
        str(tmp_path / "s"), config=StoreConfig(mapped_file_size_commit_log=SEGMENT),
        parts=StoreParts(clock=clock, services=False),
    ) as store:
        for number in range(20):
            store.put(Message(topic="a", body=b"%d" % number))
            clock.advance(86_400_000)
    seen, found = read_ranges(monkeypatch), tailrace.scan(tmp_path / "s")
    first = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    table = found.to_table(filter=(FIELD("storeTimestamp") >= first + dt.timedelta(days=5)) & (
        FIELD("storeTimestamp") < first + dt.timedelta(days=7)))
    assert table["body"].to_pylist() == [b"5", b"6"]
    assert seen.pop()[0] == {("s", "a", 0): (5, 8)}  # ten minutes more, because a Java broker's times may step back


def test_arrow_methods_give_the_same_rows(path, every):
    found = tailrace.scan(path)
    assert found.head(3).num_rows == 3
    assert found.take([0, 5], columns=["topic"])["topic"].to_pylist() == [every[0]["topic"], every[5]["topic"]]
    assert sum(batch.num_rows for batch in found.to_batches()) == COUNT
    one = found.filter(FIELD("topic") == "a")
    assert one.count_rows() == COUNT // 3
    assert one.filter(FIELD("queueId") == pa.scalar(0, pa.int32())).count_rows() == COUNT // 6
    assert sum(part.count_rows() for part in one.get_fragments()) == COUNT // 3
    assert found.to_table(columns={"double": FIELD("queueOffset") * 2}, filter=FIELD("topic") == "b")[
        "double"].to_pylist()[:2] == [0, 0]
    assert found.sort_by([("commitLogOffset", "descending")]).head(1)["commitLogOffset"].to_pylist() == [
        every[-1]["commitLogOffset"]]
    other = ds.dataset(pa.table({"topic": ["a"], "price": [7]}))
    assert tailrace.scan(path, columns=["topic"]).join(other, "topic", join_type="inner").count_rows() == COUNT // 3
    # C++ code reads the parts as files
    assert rows(ds.Scanner.from_dataset(found).to_table()) == every
    assert rows(next(iter(one.get_fragments())).to_table()) == [
        row for row in every if (row["topic"], row["queueId"]) == ("a", 0)]
    with pytest.raises(TypeError, match="choose columns"):
        found.replace_schema(pa.schema([]))
    with pytest.raises(pa.ArrowInvalid, match="tpic"):
        found.to_table(filter=FIELD("tpic") == "a")


def test_a_dataset_can_be_pickled(path):
    for found in (tailrace.scan(path, topics=["a"]), tailrace.scan(path).filter(FIELD("topic") == "a")):
        assert rows(pickle.loads(pickle.dumps(found)).to_table()) == rows(found.to_table())


def test_other_engines_read_a_dataset(path, every):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    found = tailrace.scan(path)
    with duckdb.connect() as base:
        base.register("messages", found)
        counts = base.sql(
            "select topic, count(*), sum(octet_length(body)) from messages where queueOffset < 20 and tags = 'T' "
            "group by topic order by topic").fetchall()
    wanted = [row for row in every if row["queueOffset"] < 20 and row["tags"] == "T"]
    assert counts == [(topic, len(own), sum(len(row["body"]) for row in own)) for topic in "abc"
                      for own in [[row for row in wanted if row["topic"] == topic]] if own]
    lazy = polars.scan_pyarrow_dataset(found)
    assert lazy.filter((polars.col("topic") == "a") & (polars.col("queueOffset") >= 40)).select(
        polars.len(), polars.col("queueOffset").max()).collect().rows() == [(20, 49)]
    assert found.to_table(columns=["topic", "queueOffset"]).to_pandas().shape == (COUNT, 2)


def test_an_archive_is_read_alone_and_before_the_log(tmp_path):
    path, place = tmp_path / "s", tmp_path / "a"
    fill(path)
    archived(path, place)
    before = rows(tailrace.scan(path).to_table())
    alone = rows(tailrace.scan(place).to_table())
    assert 0 < len(alone) < COUNT
    assert [{**row, "store": "s"} for row in alone] == before[: len(alone)]
    assert delete(path)
    assert tailrace.scan(path).count_rows() < COUNT
    both = tailrace.scan(path, archive=place)
    assert rows(both.to_table()) == before
    time = before[3]["commitLogOffset"]
    assert rows(both.to_table(filter=FIELD("commitLogOffset") <= time)) == before[:4]
    assert rows(tailrace.scan(place).to_table(filter=FIELD("commitLogOffset") <= time)) == alone[:4]


def test_a_damaged_record_is_an_error_or_a_row_with_the_reason(tmp_path):
    fill(tmp_path / "s", 0, 30)
    place = rows(tailrace.scan(tmp_path / "s").to_table())[10]["commitLogOffset"]
    file = next((tmp_path / "s" / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[place + 120] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptionError, match="damaged record"):
        tailrace.scan(tmp_path / "s").to_table()
    assert tailrace.scan(tmp_path / "s", mode="DROPMALFORMED").count_rows() == 29
    found = tailrace.scan(tmp_path / "s", mode="PERMISSIVE")
    assert found.to_table(filter=FIELD("damaged").is_valid())["commitLogOffset"].to_pylist() == [place]


def test_wrong_arguments_are_named(tmp_path, path):
    with pytest.raises(NotAStoreError, match="neither a commitlog nor the _manifests"):
        tailrace.scan(tmp_path)
    with pytest.raises(ConfigError, match="topic none does not exist"):
        tailrace.scan(path, topics=["none"])
    with pytest.raises(ConfigError, match="is queueOffset meant"):
        tailrace.scan(path, columns=["queueOfset"])
    with pytest.raises(ConfigError, match=r"topics=\[\] is not a list of names"):
        tailrace.scan(path, topics=[])
    with pytest.raises(ConfigError, match="mode=LOUD"):
        tailrace.scan(path, mode="LOUD")
    (tmp_path / "_manifests").mkdir()
    with pytest.raises(NotAStoreError, match="an archive without a segment"):
        tailrace.scan(tmp_path)
    with pytest.raises(ConfigError, match="is an archive"):
        tailrace.scan(tmp_path, archive=tmp_path)


def test_spark_is_not_needed(path):
    program = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'pyspark', 'pandas'}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "import tailrace\n"
        "print(tailrace.scan(sys.argv[1]).count_rows())\n")
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{COUNT}\n", "")
