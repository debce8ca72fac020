"""The reference's transactional producer with `tailrace serve`, and a directory handed over with open transactions."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter

import pytest
from java_peer import SIZES, java_broker, java_name_server, properties, wait_for_route

from tailrace import MessageStore, StoreConfig
from tailrace.node.store_opening import StoreParts
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]
PATIENT = {"transactionTimeOut": 3_600_000}
QUICK = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionOpBatchInterval": 500,
         "transactionCheckMax": 1000}
COUNT = 20


def tell(reference, namesrv, prefix, count, seconds, committed):
    """Lines that the Java producer prints."""
    done = subprocess.run(
        [reference, "transactions", namesrv, "orders", prefix, str(count), str(seconds), committed],
        capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout.splitlines()


@contextlib.contextmanager
def tailrace(tmp_path, settings, *, kill=False):
    conf = properties(tmp_path / "tailrace.conf", {**SIZES, **settings})
    broker = TailraceBroker(tmp_path / "store", "--config", str(conf))
    broker.start()
    try:
        yield broker.namesrv
    finally:
        (broker.kill if kill else broker.stop)()


@contextlib.contextmanager
def java(tmp_path, reference, settings, *, kill=False):
    with (
        java_name_server(reference, tmp_path) as namesrv,
        java_broker(reference, tmp_path / "store", {**settings, "namesrvAddr": namesrv}, kill=kill),
    ):
        wait_for_route(namesrv, "orders")
        yield namesrv


def delivered(tmp_path):
    config = StoreConfig.from_properties({name: str(size) for name, size in SIZES.items()})
    with MessageStore.open(tmp_path / "store", config=config, parts=StoreParts(services=False)) as store:
        return Counter(m.body.decode() for m in store.read("orders"))


def numbered(prefix, *kinds):
    """Messages of these kinds: 0 is committed, 1 rolled back, 2 and 3 are left open."""
    return {f"{prefix}{n}": 1 for n in range(COUNT) if n % 4 in kinds}


def test_a_java_producer_commits_rolls_back_and_answers_checks(reference, tmp_path):
    with tailrace(tmp_path, QUICK) as namesrv:
        lines = tell(reference, namesrv, "t", COUNT, 8, "t(2|6|10|14|18)")
        assert [line.split()[2] for line in lines if line.startswith("sent")] == ["SEND_OK"] * COUNT
        checked = {line for line in lines if line.startswith("check")}
        assert checked == {f"check {body} orders true" for body in numbered("t", 2, 3)}
    assert delivered(tmp_path) == numbered("t", 0, 2)


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True])
def test_open_transactions_go_to_a_java_broker_and_back(reference, tmp_path, kill):
    with tailrace(tmp_path, PATIENT, kill=kill) as namesrv:
        tell(reference, namesrv, "t", COUNT, 1, "none")
        time.sleep(1)
    assert delivered(tmp_path) == numbered("t", 0)
    with java(tmp_path, reference, QUICK, kill=kill) as namesrv:
        lines = tell(reference, namesrv, "j", COUNT, 12, "t(2|6|10|14|18)")
        time.sleep(2)
        asked = {line.split()[1] for line in lines if line.startswith("check")}
        assert asked >= numbered("t", 2, 3).keys()
        if not kill:  # else what the operations say is lost, and a Java broker asks again
            assert not asked & numbered("t", 0, 1).keys()
    before = delivered(tmp_path)
    twice_by_java = {body for body, times in before.items() if times > 1}
    assert before.keys() >= {**numbered("t", 0, 2), **numbered("j", 0)}.keys()
    with tailrace(tmp_path, QUICK, kill=kill) as namesrv:
        lines = tell(reference, namesrv, "x", 0, 7, "[tj](2|3|6|7|10|11|14|15|18|19)")
        asked = {line.split()[1] for line in lines if line.startswith("check")}
        assert asked >= {**numbered("t", 3), **numbered("j", 2, 3)}.keys()
    after = delivered(tmp_path)
    assert {body for body, times in after.items() if times > 1} == twice_by_java
    if not kill:
        assert after == {**numbered("t", 0, 2, 3), **numbered("j", 0, 2, 3)}
        assert twice_by_java == set()
    else:
        assert after.keys() == {**numbered("t", 0, 2, 3), **numbered("j", 0, 2, 3)}.keys()
