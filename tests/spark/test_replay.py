"""Chosen messages are sent again: all of them, in order, at a rate, and on from where it stopped."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from tailrace import Message, MessageStore, StoreConfig
from tailrace.cli.app import app
from tailrace.errors import ConfigError, CorruptionError
from tailrace.formats.commitlog import encode_batch
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts

pytestmark = [pytest.mark.spark, pytest.mark.slow]
CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 16, commit_log_allocate_step=4096)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "store"
    with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
        for n in range(200):
            store.put(
                Message(topic=f"T{n % 2}", body=b"%d" % n, tags=f"g{n % 5}", keys=[f"k{n}", "all"],
                        properties={"color": "blue" if n % 3 else "red", "TIMER_ENQUEUE_MS": "7"},
                        flag=n),
                queue_id=n // 2 % 4)
    return path


def contents(path):
    with MessageStore.open(path, parts=StoreParts(services=False), create=False) as store:
        return {
            (topic, queue_id): list(store.read(topic, queue_id))
            for topic, queue_id, low, high in store.queues() if high > low
        }


class Recorder:
    """A target that fails on demand."""

    def __init__(self, fail_at=-1):
        self.fail_at = fail_at
        self.got = []

    def queues(self, topic):
        return 4

    def create(self, topic, queues):
        raise AssertionError("it is there")

    def put(self, queue_id, messages):
        if self.fail_at == 0:
            raise OSError("the target is gone")
        self.fail_at -= 1
        self.got += messages


def test_a_filter_into_a_store_with_the_same_ids(spark, made, tmp_path):
    from tailrace.spark.pipeline.replay import Replay, StoreTarget, replay

    wanted = Replay(
        path=str(made), topics=("T0", "T1"), where="tags = 'g1' and properties['color'] = 'blue'",
        window=7)
    with StoreTarget(str(tmp_path / "target"), CONFIG) as target:
        report = replay(spark, wanted, target)
    source, found = contents(made), contents(tmp_path / "target")
    chosen = {
        key: [m for m in messages if m.properties["TAGS"] == "g1" and m.properties["color"] == "blue"]
        for key, messages in source.items()
    }
    assert report["sent"] == sum(map(len, chosen.values())) > 20
    for key, messages in chosen.items():
        assert [
            (m.body, m.flag, m.properties["UNIQ_KEY"], m.properties["KEYS"], m.properties["TAGS"])
            for m in found[key]
        ] == [
            (m.body, m.flag, m.properties["UNIQ_KEY"], m.properties["KEYS"], m.properties["TAGS"])
            for m in messages
        ]
        assert [int(m.properties["TAILRACE_REPLAY"]) for m in found[key]] == [
            m.phy_offset for m in messages]
        assert not any("TIMER_ENQUEUE_MS" in m.properties for m in found[key])


def test_new_ids_and_another_topic(spark, made, tmp_path):
    from tailrace.spark.pipeline.replay import Replay, StoreTarget, replay

    with StoreTarget(str(tmp_path / "target"), CONFIG) as target:
        replay(spark, Replay(
            path=str(made), topics=("T1",), to_topic="again", keep_ids=False,
            options={"startingOffsets": '{"T1": {"0": 20}}'}), target)
    old = {m.properties["UNIQ_KEY"] for ms in contents(made).values() for m in ms}
    found = contents(tmp_path / "target")
    assert {key: len(ms) for key, ms in found.items()} == {
        ("again", 0): 5, ("again", 1): 25, ("again", 2): 25, ("again", 3): 25}
    assert not old & {m.properties["UNIQ_KEY"] for ms in found.values() for m in ms}


def test_a_second_run_goes_on_and_no_more_than_a_window_comes_twice(spark, made, tmp_path):
    from tailrace.spark.pipeline.replay import Replay, replay

    progress = tmp_path / "progress.json"
    wanted = Replay(path=str(made), topics=("T0",), window=10, progress=str(progress))
    first = Recorder(fail_at=23)
    with pytest.raises(OSError, match="the target is gone"):
        replay(spark, wanted, first)
    noted = json.loads(progress.read_text())
    assert noted["sent"] % 10 == 0
    assert 0 < noted["sent"] <= len(first.got) < noted["sent"] + 10
    second = Recorder()
    report = replay(spark, wanted, second)
    assert report["sentBefore"] == noted["sent"]
    assert report["sent"] + noted["sent"] == 100
    bodies = [m.body for m in first.got] + [m.body for m in second.got]
    assert {int(body) for body in bodies} == set(range(0, 200, 2))
    assert len(bodies) - 100 < 10
    assert replay(spark, wanted, Recorder())["sent"] == 0
    with pytest.raises(ConfigError, match="is of another replay: where differ"):
        replay(spark, Replay(
            path=str(made), topics=("T0",), where="flag > 3", progress=str(progress)), Recorder())
    progress.write_text("{")
    with pytest.raises(CorruptionError, match="is not a progress file of a replay"):
        replay(spark, wanted, Recorder())


@pytest.mark.parametrize("fail_at", [1, 2, 5])
def test_no_message_of_an_inner_batch_is_left_out_by_a_second_run(spark, tmp_path, fail_at):
    """A window ends inside a record of several messages, which have one position."""
    from tailrace.spark.pipeline.replay import Replay, replay

    with MessageStore.open(tmp_path / "store", config=CONFIG, parts=StoreParts(services=False)) as store:
        store.create_topic("B", 1, {"queue.type": "BatchCQ"})
        for n in range(12):
            body = encode_batch([(0, b"%d-%d" % (n, at), b"") for at in range(7)])
            assert store.put_inner(MessageExtBrokerInner(
                "B", 0, body, encode_properties({"UNIQ_KEY": f"u{n}", "INNER_NUM": "7"}), 0, 0xC0, 1)).ok
        store.put(Message(topic="B", body=b"single"))
        sent = [m.body for m in store.read("B")]
    assert len(sent) == 85
    progress = tmp_path / "progress.json"
    wanted = Replay(path=str(tmp_path / "store"), topics=("B",), window=5, progress=str(progress))
    first, second = Recorder(fail_at), Recorder()
    with pytest.raises(OSError, match="the target is gone"):
        replay(spark, wanted, first)
    replay(spark, wanted, second)
    bodies = [m.body for m in first.got + second.got]
    assert list(dict.fromkeys(bodies)) == sent
    assert len(bodies) - len(sent) < 7, "only messages of the record in which the window ended come twice"
    marks = {m.properties["TAILRACE_REPLAY"]: m.body for m in first.got + second.got}
    assert sorted(marks.values()) == sorted(sent), "equal for a second copy, and for no other message"
    assert replay(spark, wanted, Recorder())["sent"] == 0


def test_a_directory_that_was_replaced_is_not_continued(spark, tmp_path):
    from tailrace.spark.pipeline.replay import Replay, replay

    path, progress = tmp_path / "store", tmp_path / "progress.json"

    def fill(name):
        with MessageStore.open(path, config=CONFIG, parts=StoreParts(services=False)) as store:
            for n in range(40):
                store.put(Message(topic="T", body=b"%s%d" % (name, n)))

    fill(b"old")
    wanted = Replay(path=str(path), topics=("T",), progress=str(progress))
    assert replay(spark, wanted, Recorder())["sent"] == 40
    fill(b"more")
    assert replay(spark, wanted, Recorder())["sent"] == 40
    shutil.rmtree(path)
    fill(b"new")
    fill(b"new")
    fill(b"new")
    with pytest.raises(ConfigError, match="has another message at position"):
        replay(spark, wanted, Recorder())
    shutil.rmtree(path)
    fill(b"shorter")
    with pytest.raises(ConfigError, match="has another message at position"):
        replay(spark, wanted, Recorder())
    noted = json.loads(progress.read_text())
    del noted["last"]  # of an earlier release
    progress.write_text(json.dumps(noted))
    assert replay(spark, wanted, Recorder())["sent"] == 0


def test_the_rate_is_kept(spark, made):
    from tailrace.spark.pipeline.replay import Replay, replay

    report = replay(spark, Replay(path=str(made), topics=("T0",), rate=80, where="flag < 120"), Recorder())
    assert report["sent"] == 60
    assert report["seconds"] >= 59 / 80 - 0.75, "all but the last window waits"


def test_what_cannot_be_is_told_at_once(made):
    from tailrace.spark.pipeline.replay import Replay

    with pytest.raises(ConfigError) as caught:
        Replay(path=str(made), topics=("SCHEDULE_TOPIC_XXXX",), window=0,
               options={"Columns": "body"}).check()
    assert all(word in str(caught.value) for word in ("system topic", "window", "columns"))


def test_the_command_sends_to_a_broker(spark, made, tailrace_broker):
    _ = spark  # the command runs in its session
    done = CliRunner().invoke(app, [
        "pipeline", "replay", str(made), "--topic", "T0", "--where", "flag >= 100",
        "--to-namesrv", tailrace_broker.namesrv])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["sent"] == 50
    tailrace_broker.stop()
    found = contents(tailrace_broker.store_path)
    assert sorted(int(m.body) for ms in found.values() for m in ms) == list(range(100, 200, 2))
    for arguments, text in (
        (["--to-store", str(made)], "is the same directory as STORE"),
        ([], "use one of --to-broker"),
        (["--to-store", "x", "--ids", "some"], "--ids some is not keep or new"),
    ):
        done = CliRunner().invoke(app, ["pipeline", "replay", str(made), "--topic", "T0", *arguments])
        assert (done.exit_code, text in done.stderr) == (2, True)
    done = CliRunner().invoke(app, [
        "pipeline", "replay", str(made), "--topic", "T0", "--where", "nothing = 1", "--to-store",
        str(made.parent / "other")])
    assert done.exit_code == 1
    assert "nothing" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (made.parent / "other").exists()
