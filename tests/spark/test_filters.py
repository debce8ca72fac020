"""Filters reach the source where the session allows it, and only when asked for."""

import pytest

from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytestmark = pytest.mark.spark
SETTING = "spark.sql.python.filterPushdown.enabled"


def test_filters_become_bounds(spark, tmp_path):
    with MessageStore.open(str(tmp_path / "s")) as store:
        for number in range(15):
            store.put(Message(topic="ab"[number % 2], body=b"x"), queue_id=number % 3)
        store.wait_dispatched(60_000)

    def load(**options):
        return spark.read.format("tailrace").options(**options).load(str(tmp_path / "s"))

    place, time = load().orderBy("commitLogOffset").selectExpr(
        "commitLogOffset", "unix_millis(storeTimestamp)").collect()[8]
    condition = f"topic = 'b' AND queueId IN (0, 1) AND commitLogOffset >= {place}"
    wanted = load().where(condition).count()
    assert 0 < wanted < 15
    assert load().where(condition).count() == wanted  # no option: no question of the setting
    spark.conf.set(SETTING, "true")
    try:
        pushed = load(pushFilters="true", minPartitions=15).where(condition)
        assert pushed.count() == wanted
        assert pushed.rdd.getNumPartitions() == wanted  # one a message that is left
        late = f"storeTimestamp >= timestamp_millis({time})"
        wanted = load().where(late).count()
        assert wanted > 0
        pushed = load(pushFilters="true", minPartitions=15).where(late)
        assert pushed.count() == wanted == pushed.rdd.getNumPartitions()
    finally:
        spark.conf.unset(SETTING)
