"""`/ready` and `/metrics` over a real socket, with a broker on a store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop
from broker_kit import admin_of
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from tailrace.broker.consumers.lags import Lag
from tailrace.broker.statistics.pop_metrics import ReviveProgress
from tailrace.config import BrokerConfig
from tailrace.env import supervision
from tailrace.ha.replicas import Replica
from tailrace.metrics import METRICS, Metric, MetricKind
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.observe import exposition as exposition_module
from tailrace.observe.exposition import Exposition
from tailrace.observe.http_status import HttpAnswer, HttpStatusServer
from tailrace.observe.http_turns import PAGES_WAITING_MAX
from tailrace.remoting.acceptor import Acceptor
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.tls import server_context
from tailrace.requests.durable_answers import PENDING_LIMIT
from tailrace.store.queue_reader import QueueReader
from tailrace.tls_settings import TlsConfig

BASE = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


@contextlib.asynccontextmanager
async def serving(**options):
    server = HttpStatusServer(BrokerConfig(), **{"shared_s": 0, **options})
    address = await server.start("127.0.0.1", 0)

    async def ask(data):
        if isinstance(data, str):
            data = data.encode() if data.startswith("GET") else f"GET {data} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        return SimpleNamespace(status=status, head=head.decode(), body=body.decode())

    try:
        yield server, ask
    finally:
        await server.stop()


def samples(text):
    return {
        (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k not in BASE))): s
        for family in text_string_to_metric_families(text) for s in family.samples
    }


def value(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))].value


def test_ready_tells_how_far_the_recovery_has_come():
    done = [None]

    async def test():
        async with serving(progress=lambda: done[0]) as (server, ask):
            first = await ask("/ready")
            assert (first.status, first.body) == (503, "starting\n")
            done[0] = 0.426
            second = await ask("/ready?x=1")
            assert (second.status, second.body) == (503, "recovering 43 %\n")
            found = samples((await ask("/metrics")).body)
            assert value(found, "tailrace_recovered_ratio") == 0.426
            assert value(found, "tailrace_ready") == 0
            server.stopping()
            assert (await ask("/ready")).body == "stopping\n"

    run(test)


def test_ready_is_200_once_clients_are_served(store):
    async def test():
        async with serving() as (server, ask):
            server.serving(None)
            answer = await ask("/ready")
            assert (answer.status, answer.body) == (200, "ready\n")
            assert "Connection: close" in answer.head

    run(test)


def test_metrics_show_what_went_in_and_out_and_what_waits(store, broker, kit):
    broker.traffic.take_in("orders", "normal", 1, 229)
    broker.traffic.take_in("orders", "normal", 2, 9000)
    broker.traffic.take_in("orders", "fifo", 1, 5 << 20)
    broker.traffic.hand_out("orders", "readers", 2, 500)
    broker.traffic.dead_letters["readers"] += 3
    broker.topics.create_if_missing("orders", 2)
    for _ in range(5):
        store.put_inner(MessageExtBrokerInner("orders", 0, b"x", b""))
    broker.topics.create_if_missing("%DLQ%readers", 2)
    for queue_id in (0, 1, 1):
        store.put_inner(MessageExtBrokerInner("%DLQ%readers", queue_id, b"x", b""))
    broker.traffic.put_took("orders", 0, 30_000_000)
    store.clock.ms += 1500
    broker.offsets.commit("readers", "orders", 0, 1)
    broker.offsets.commit_pull("readers", "orders", 0, 4)
    request = kit.request(34, version=479)
    broker.clients.producers.register(kit.FakeChannel(), request, "client", "senders")
    broker.clients.consumers.register(
        kit.FakeChannel(), request, "client",
        {"groupName": "readers", "consumeType": "CONSUME_PASSIVELY"})
    store.is_writeable = False
    store.stats = lambda: {"flushBehindBytes": 300}

    async def test():
        async with serving() as (server, ask):
            server.serving(broker)
            answer = await ask("/metrics")
            assert "text/plain; version=0.0.4" in answer.head
            found = samples(answer.body)
        assert all(BASE.items() <= s.labels.items() for (name, _), s in found.items()
                   if name.startswith(("rocketmq_", "tailrace_")) and name != "rocketmq_proxy_up")
        normal = {"topic": "orders", "message_type": "normal", "is_system": "false"}
        assert value(found, "rocketmq_messages_in_total", **normal) == 3
        assert value(found, "rocketmq_throughput_in_total", **normal) == 9229
        assert value(found, "rocketmq_message_size_bucket", le="1024.0", **normal) == 1
        assert value(found, "rocketmq_message_size_bucket", le="4096.0", **normal) == 1
        assert value(found, "rocketmq_message_size_bucket", le="+Inf", **normal) == 3
        fifo = {**normal, "message_type": "fifo"}
        assert value(found, "rocketmq_message_size_bucket", le="4194304.0", **fifo) == 0
        assert value(found, "rocketmq_message_size_sum", **fifo) == 5 << 20
        out = {"topic": "orders", "consumer_group": "readers", "is_system": "false"}
        assert value(found, "rocketmq_messages_out_total", **out) == 2
        assert value(found, "rocketmq_send_to_dlq_messages_total", consumer_group="readers") == 3
        assert value(found, "tailrace_dead_letters", consumer_group="readers") == 3
        assert value(found, "tailrace_put_latency_milliseconds_bucket", le="20.0") == 0
        assert value(found, "tailrace_put_latency_milliseconds_bucket", le="50.0") == 1
        assert value(found, "tailrace_put_latency_milliseconds_sum") == 30
        lag = {**out, "is_retry": "false"}
        assert value(found, "rocketmq_consumer_lag_messages", **lag) == 4
        assert value(found, "rocketmq_consumer_inflight_messages", **lag) == 3
        assert value(found, "rocketmq_consumer_ready_messages", **lag) == 1
        assert value(found, "rocketmq_consumer_lag_latency_milliseconds", **lag) == 1500
        local = {"storage_type": "local", "storage_medium": "disk"}
        assert value(found, "rocketmq_storage_flush_behind_bytes", **local) == 300
        assert value(found, "rocketmq_storage_size_bytes", **local) > 0
        assert value(found, "rocketmq_broker_permission") == 4
        assert value(found, "rocketmq_producer_connections", language="java", version="479",
                     protocol_type="remoting") == 1
        assert value(found, "rocketmq_consumer_connections", language="java", version="479",
                     consumer_group="readers", consume_mode="push", protocol_type="remoting",
                     is_system="false") == 1

    run(test)


def test_what_is_deleted_is_not_shown_any_more(broker, kit, channel):
    topics = kit.served(admin_of(broker))
    broker.topics.create_if_missing("orders", 1)
    for topic, group in (("orders", "g"), ("others", "g"), ("orders", "h")):
        broker.traffic.take_in(topic, "normal", 1, 100)
        broker.traffic.hand_out(topic, group, 1, 100)
    broker.traffic.dead_letters["g"] += 1
    topics.delete_topic(channel, kit.request(215, {"topic": "orders"}))
    assert (set(broker.traffic.came_in), set(broker.traffic.went_out)) == (
        {("others", "normal")}, {("others", "g")})
    topics.delete_group(channel, kit.request(207, {"groupName": "g"}))
    assert not broker.traffic.went_out
    assert not broker.traffic.dead_letters


def test_a_lag_counts_from_what_is_still_there_and_never_below_zero(broker, store, monkeypatch):
    broker.topics.create_if_missing("orders", 3)
    for queue_id in (0, 0, 0, 0, 1):
        store.put_inner(MessageExtBrokerInner("orders", queue_id, b"x", b""))
    monkeypatch.setattr(QueueReader, "min", property(lambda queue: 0 if queue.queue_id else 2))
    for queue_id, offset in ((0, 1), (1, 7), (2, 0), (9, 5)):
        broker.offsets.commit("g", "orders", queue_id, offset)
    broker.offsets.commit("g", "gone", 0, 5)
    [(key, lag)] = broker.lags.sums(Lag).items()
    assert key == ("g", "orders")
    # Queue 0 lost two of its messages to retention, queue 1 is committed beyond its end.
    assert (lag.behind, lag.in_flight, lag.ready) == (2, 0, 2)


def test_every_declared_metric_is_exposed_and_none_else(store, broker):
    store.is_writeable = True
    store.earliest_message_time = lambda: 1
    store.stats = dict
    broker.topics.create_if_missing("orders", 1)

    async def test():
        async with serving(progress=lambda: 0.5) as (server, ask):
            recovering = (await ask("/metrics")).body
            broker.audit_log = SimpleNamespace(waiting=0, lost=0)
            server.serving(broker)
            text = recovering + (await ask("/metrics")).body
        shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
        declared = {m.exposed for m in METRICS}
        assert {n for n in shown if not n.startswith("process_")} == declared

    run(test)


def test_units_are_put_behind_names_as_the_references_exporter_does():
    def made(name, unit):
        return Metric(name=name, kind=MetricKind.GAUGE, description="", unit=unit).exposed

    assert made("rocketmq_storage_size", "bytes") == "rocketmq_storage_size_bytes"
    assert made("rocketmq_storage_flush_behind_bytes", "bytes") == (
        "rocketmq_storage_flush_behind_bytes")
    assert made("rocketmq_topic_number", "") == "rocketmq_topic_number"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404), (b"POST /ready HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400), (b"GET /ready HTTP/1.1\r\nX: " + bytes(70_000), 431),
    ],
)
def test_bad_requests_are_answered_so(data, status):
    async def test():
        async with serving() as (_, ask):
            assert (await ask(data)).status == status
            assert (await ask("/ready")).status == 503

    run(test)


def test_head_has_no_body_and_a_silent_client_is_let_go():
    async def test():
        async with serving(request_timeout_s=0.05) as (_, ask):
            answer = await ask(b"HEAD /ready HTTP/1.1\r\n\r\n")
            assert (answer.status, answer.body) == (503, "")
            with contextlib.suppress(ConnectionError):
                assert (await ask(b"GET /rea")).status == 0

    run(test)


def test_a_store_that_fails_while_asked_is_a_500(store, broker):
    def failing():
        raise OSError(5, "Input/output error")

    store.stats = failing
    store.is_writeable = True

    async def test():
        async with serving() as (server, ask):
            server.serving(broker)
            assert (await ask("/metrics")).status == 500
            assert (await ask("/ready")).status == 200

    run(test)


class Gate:
    """A function that counts its calls, and returns when it is open."""

    def __init__(self, result):
        self.open, self.calls, self.result, self.started = threading.Event(), 0, result, threading.Event()

    def __call__(self, *_):
        self.calls += 1
        self.started.set()
        assert self.open.wait(30)
        return self.result


def test_forty_scrapers_share_one_text_and_ready_waits_for_none(store, broker, monkeypatch):
    gate = Gate(b"text")
    monkeypatch.setattr(Exposition, "text", gate)

    async def test():
        async with serving(shared_s=30) as (server, ask):
            server.serving(broker)
            scrapers = [asyncio.ensure_future(ask("/metrics")) for _ in range(40)]
            await asyncio.to_thread(gate.started.wait, 30)
            assert (await ask("/ready")).status == 200, "while the text is made"
            gate.open.set()
            assert {(a.status, a.body) for a in await asyncio.gather(*scrapers)} == {(200, "text")}
            assert (await ask("/metrics")).body == "text"
            assert gate.calls == 1
            server.stopping()
            await ask("/metrics")
            assert gate.calls == 2, "the text of another state is not shared"

    run(test)


def test_a_text_is_made_again_when_its_time_is_over(store, broker, monkeypatch):
    gate = Gate(b"text")
    gate.open.set()
    monkeypatch.setattr(Exposition, "text", gate)

    async def test():
        async with serving(shared_s=0.01) as (server, ask):
            server.serving(broker)
            for _ in range(100):
                await ask("/metrics")
                if gate.calls >= 2:
                    return
            raise AssertionError(gate.calls)

    run(test)


def test_one_page_of_a_kind_is_made_at_a_time_and_too_many_are_refused(store, broker):
    slow, quick = Gate(HttpAnswer(HTTPStatus.OK, b"slow", "text/plain", {})), Gate(
        HttpAnswer(HTTPStatus.OK, b"quick", "text/plain", {}))
    quick.open.set()

    def pages(target, state, _):
        return slow() if target.startswith("/console/disk") else quick()

    async def test():
        async with serving(pages=pages) as (server, ask):
            server.serving(broker)
            waiting = [asyncio.ensure_future(ask(CONSOLE.format(f"disk?{n}"))) for n in range(PAGES_WAITING_MAX + 1)]
            await asyncio.to_thread(slow.started.wait, 30)
            while server._turns._waiting < PAGES_WAITING_MAX:
                await asyncio.sleep(0)
            refused = await ask(CONSOLE.format("topics"))
            assert (refused.status, "Retry-After: 5" in refused.head) == (503, True)
            assert "16 requests for pages wait already" in refused.body
            assert server._turns.executor.refused == 1
            assert (await ask("/ready")).status == 200
            assert slow.calls == 1
            slow.open.set()
            assert {a.status for a in await asyncio.gather(*waiting)} == {200}
            assert (await ask(CONSOLE.format("topics"))).body == "quick"

    run(test)


def test_a_page_that_takes_too_long_is_refused_and_no_second_one_is_started(store, broker):
    slow = Gate(HttpAnswer(HTTPStatus.OK, b"slow", "text/plain", {}))

    async def test():
        async with serving(pages=lambda *_: slow(), page_s=0.05) as (server, ask):
            server.serving(broker)
            for _ in range(3):
                answer = await ask(CONSOLE.format("disk"))
                assert (answer.status, "the page takes too long" in answer.body) == (503, True)
            assert slow.calls == 1
            slow.open.set()
            while (await ask(CONSOLE.format("disk"))).status != 200:
                pass

    run(test)


CONSOLE = "GET /console/{} HTTP/1.1\r\nHost: localhost\r\n\r\n"
OPENMETRICS = "application/openmetrics-text"
PROMETHEUS = (  # what Prometheus 2.53 asks for
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2")


def full(store, broker, kit):
    """A broker that has something to say for every metric."""
    broker.traffic.take_in("orders", "normal", 2, 9000)
    broker.traffic.hand_out("orders", "readers", 2, 500)
    broker.traffic.dead_letters["readers"] += 3
    broker.transactions.metrics.add("orders", 3)
    for commit in (True, False):
        broker.transactions.metrics.settled("orders", store.clock.ms - 7000, commit=commit)
    pop = broker.pop_metrics
    pop.put("readers", "orders", "CK", "PUT_OK")
    pop.got("readers", "orders", 3, "CK")
    pop.retried("readers", "orders", "PUT_OK")
    broker.revive = SimpleNamespace(pending=0, progress=lambda: {3: ReviveProgress(4, 50)})
    broker.topics.create_if_missing("orders", 2)
    broker.topics.create_if_missing("%DLQ%readers", 1)
    broker.traffic.put_took("orders", 0, 3_000_000)
    broker.offsets.commit("readers", "orders", 0, 0)
    request = kit.request(34, version=479)
    broker.clients.producers.register(kit.FakeChannel(), request, "client", "senders")
    broker.clients.consumers.register(
        kit.FakeChannel(), request, "client",
        {"groupName": "readers", "consumeType": "CONSUME_PASSIVELY"})
    broker.rpc_latency.is_served = True
    broker.rpc_latency.observe("send_message", "ok", 4.2)
    lateness = {"counts": [1] * 15, "sumMs": 40}
    broker.audit_log = SimpleNamespace(waiting=1, lost=2)
    broker.name_servers.states = lambda: {"10.0.0.9:9876": True}
    broker.replicas.add(Replica("10.0.0.8:5", "10.0.0.8", SimpleNamespace(close=lambda: None), 0), 1)
    broker.replicas.closed["timeout"] = 1
    broker.slave = SimpleNamespace(
        is_connected=True, lacking_bytes=4, received=5, connects=3, stops={"disk": 1}, pulls_ahead=1,
        metadata_failures=2, faults=SimpleNamespace(lasting={"users": 1}))
    store.is_writeable = True
    store.earliest_message_time = lambda: 1
    store.stats = lambda: {
        "flushBehindBytes": 300, "deletedFiles": 2, "timerPutBack": 7,
        "timerLateness": lateness, "scheduleLateness": lateness, "timerPendingByTopic": {"orders": 3},
        "timerPendingWithin": {60: 2}, "timerOverdue": 1, "schedulePendingByLevel": {3: 1},
        "diskUsedPercent": {"/store": 40}, "diskLimitsPercent": {"/store": {"delete": 75}},
        "logSyncMs": {"counts": [1] * 12, "sum": 9.5}}
    return broker


@pytest.mark.caught
@pytest.mark.parametrize("accept", [OPENMETRICS, f"{OPENMETRICS};version=1.0.0", PROMETHEUS])
def test_metrics_pass_the_parser_of_openmetrics(store, broker, kit, accept):
    async def test():
        async with serving(progress=lambda: 0.5) as (server, ask):
            ask_for = f"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n".encode()
            early = await ask(ask_for)
            supervision.FAILURES["a test"] += 1  # or its metric has no sample
            server._acceptor.expires_s = lambda: {"tls.server.certPath": 60.0}
            server.serving(full(store, broker, kit))
            answer, classic = await ask(ask_for), await ask("/metrics")
        assert "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8" in answer.head
        assert answer.body.endswith("\n# EOF\n")
        assert sorted(f.name for f in openmetrics_families(early.body) if f.name.startswith("tailrace")) == sorted([
            "tailrace_ready", "tailrace_connections", "tailrace_connections_max",
            "tailrace_connections_closed", "tailrace_requests_over_quota", "tailrace_grpc_calls",
            "tailrace_grpc_clients", "tailrace_grpc_refused", "tailrace_connection_bytes", "tailrace_tls_handshakes",
            "tailrace_tls_handshakes_incomplete", "tailrace_tls_certificate_expires_seconds",
            "tailrace_connections_refused",
            "tailrace_executor_running", "tailrace_executor_waiting", "tailrace_executor_refused",
            "tailrace_recovered_ratio"])
        found = {f.name: f for f in openmetrics_families(answer.body)}
        for metric in METRICS:
            if metric.name == "tailrace_recovered_ratio":
                continue
            # A counter's family has no suffix, its samples have.
            family = found[metric.exposed.removesuffix("_total")]
            assert family.type == metric.kind.value
            assert family.unit == metric.unit
            assert family.documentation == metric.description
            assert family.samples, metric.name
        assert "# EOF" not in classic.body
        old = samples(classic.body)
        new = {s.name for f in found.values() for s in f.samples}
        own = ("rocketmq_", "tailrace_")
        assert {n for n, _ in old if n.startswith(own)} == {n for n in new if n.startswith(own)}

    run(test)


@pytest.mark.parametrize("accept", [
    "", "Accept: */*", "Accept: text/html, */*;q=0.1", "Accept: text/plain;version=0.0.4", "Accept:",
    "X-Accept: application/openmetrics-text", "no colon",
])
def test_others_get_the_classic_text(store, broker, kit, accept):
    async def test():
        async with serving() as (server, ask):
            server.serving(full(store, broker, kit))
            head = "GET /metrics HTTP/1.1\r\n" + (f"{accept}\r\n" if accept else "")
            answer = await ask(f"{head}\r\n".encode())
        assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in answer.head
        assert len(samples(answer.body)) > 40

    run(test)


def test_a_label_with_odd_characters_passes_both_parsers(store, broker, kit):
    odd = 'quo"te \\ back\nline \u20ac'
    broker.traffic.hand_out(odd, "readers", 2, 500)

    async def test():
        async with serving() as (server, ask):
            server.serving(full(store, broker, kit))
            new = await ask(f"GET /metrics HTTP/1.1\r\nAccept: {OPENMETRICS}\r\n\r\n".encode())
            old = await ask("/metrics")
        for parse, text in ((openmetrics_families, new.body), (text_string_to_metric_families, old.body)):
            assert odd in {s.labels.get("topic") for f in parse(text) for s in f.samples}

    run(test)


EXPORTER = frozenset(re.findall(r"\w+", """
broker_permission commit_messages_total consumer_connections consumer_group_create_execution_time
consumer_group_number consumer_inflight_messages consumer_lag_latency consumer_lag_messages
consumer_queueing_latency consumer_ready_messages delay_message_latency finish_message_latency
half_messages pop_buffer_scan_time_consume pop_offset_buffer_size pop_revive_lag pop_revive_latency
pop_checkpoint_buffer_size pop_revive_in_message_total pop_revive_out_message_total
pop_revive_retry_messages_total message_size messages_in_total messages_out_total processor_watermark
producer_connections proxy_up rollback_messages_total rpc_latency send_to_dlq_messages_total
storage_dispatch_behind_bytes storage_flush_behind_bytes storage_message_reserve_time storage_size
throughput_in_total throughput_out_total timer_dequeue_lag timer_dequeue_latency
timer_dequeue_total timer_enqueue_lag timer_enqueue_latency timer_enqueue_total
timer_message_snapshot timing_messages topic_create_execution_time topic_number
"""))
"""Metrics of the exporters of RocketMQ 5.5.0 and its proxy, without those of POP and RocksDB."""
STORAGE = {"storage_type", "storage_medium"}


def test_the_how_to_names_every_metric_of_the_exporter_that_does_not_exist():
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "operate" / "monitor.md").read_text()
    ours = {m.name.removeprefix("rocketmq_") for m in METRICS if m.name.startswith("rocketmq_")}
    assert ours <= EXPORTER, "a name that RocketMQ does not have starts with tailrace_"
    absent = set(re.findall(r"`rocketmq_([a-z_]+)`", text[text.index("Tailrace has no"):text.index("## Limits for")]))
    assert absent == EXPORTER - ours


@pytest.mark.parametrize(("name", "labels"), [
    ("rocketmq_timer_enqueue_lag", STORAGE), ("rocketmq_timer_dequeue_lag", STORAGE),
    ("rocketmq_timer_dequeue_latency", STORAGE),
    ("rocketmq_timer_message_snapshot", {*STORAGE, "timer_bound_s"}),
])
def test_metrics_of_timers_have_the_labels_of_the_exporter(name, labels):
    (metric,) = [m for m in METRICS if m.name == name]
    assert set(metric.labels) == labels


def test_ready_says_why_sends_fail_although_the_store_takes_writes(broker, store):
    async def test():
        async with serving() as (server, ask):
            server.serving(broker)
            store.refused_puts.note(PutMessageResult(
                PutMessageStatus.CREATE_MAPPED_FILE_FAILED, remark="no space for /s/commitlog/0"))
            found = await ask("/ready")
            assert (found.status, found.body) == (503, "sends fail: no space for /s/commitlog/0\n")
            store.refused_puts.probe(lambda: None)
            assert (await ask("/ready")).status == 200
            broker.waiting_sends = lambda: PENDING_LIMIT
            found = await ask("/ready")
            assert (found.status, found.body) == (503, "sends are refused: 10000 wait for the disk already\n")

    run(test)


@pytest.mark.parametrize(("writeable", "read_only", "answer"), [
    (True, "", (200, "ready\n")),
    (False, "", (503, "the store takes no writes: sync of /s failed; no room\n")),
    (False, "read-only since it was opened", (200, "ready, read-only since it was opened\n")),
], ids=["writes", "takes no writes", "opened read-only"])
def test_ready_says_whether_the_store_takes_writes(broker, store, writeable, read_only, answer):
    store.is_writeable, store.read_only = writeable, read_only
    store.not_writeable_reason = "sync of /s failed; no room"

    async def test():
        async with serving() as (server, ask):
            server.serving(broker)
            found = await ask("/ready")
            assert (found.status, found.body) == answer

    run(test)


def test_slow_clients_do_not_keep_others_out():
    async def test():
        async with serving() as (server, ask):
            address = server._server.sockets[0].getsockname()
            slow = [await asyncio.open_connection(*address[:2]) for _ in range(80)]
            for _, writer in slow:
                writer.write(b"GET /ready HTTP/1.1\r\n")
            answer = await ask("/metrics")
            assert answer.status == 200
            assert value(samples(answer.body), "tailrace_connections_closed_total", reason="slow http") >= 16
            with contextlib.suppress(ConnectionResetError):
                assert await slow[0][0].read() == b"", "the oldest goes first"
            for _, writer in slow:
                writer.close()

    run(test)


def test_many_clients_of_one_address_do_not_close_those_of_others(monkeypatch):
    """The connection of another address has sent a part of its request, and all others have sent theirs."""
    async def test():
        go = asyncio.Event()

        async def answer(self, head, connection):
            await go.wait()
            return b"HTTP/1.1 200 OK\r\n\r\nready"

        monkeypatch.setattr(HttpStatusServer, "_answer", answer)
        async with serving() as (server, _):
            address = server._server.sockets[0].getsockname()[:2]
            writers = []

            async def connect(host, data, open_ones):
                reader, writer = await asyncio.open_connection(*address, local_addr=(host, 0))
                writers.append(writer)
                writer.write(data)
                while sum(c.peer_ip == host for c in server._open) < open_ones:
                    await asyncio.sleep(0)
                return reader

            for number in range(40):
                await connect("127.0.0.66", b"GET /ready HTTP/1.1\r\n\r\n", number + 1)
            other = await connect("127.0.0.1", b"GET /ready HTTP/1.1\r\n", 1)
            for _ in range(60):
                await connect("127.0.0.66", b"GET /ready HTTP/1.1\r\n\r\n", 40)
            writers[40].write(b"\r\n")
            go.set()
            assert (await other.read()).endswith(b"ready")
            for writer in writers:
                writer.close()

    run(test)


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_connection_that_is_closed_before_its_answer_is_no_error(loop, monkeypatch):
    """uvloop refuses to set the limits of a transport that is closed."""
    async def test():
        failures, began, go = [], asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

        async def answer(self, head, connection):
            began.set()
            await go.wait()
            return b"HTTP/1.1 200 OK\r\n\r\n"

        monkeypatch.setattr(HttpStatusServer, "_answer", answer)
        async with serving() as (server, _):
            _, writer = await asyncio.open_connection(*server._server.sockets[0].getsockname()[:2])
            writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
            await began.wait()
            [connection] = server._open
            connection.abort()  # as a limit does
            go.set()
            while server._tasks:
                await asyncio.sleep(0)
            writer.close()
        assert failures == []

    loop(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize(("mode", "plain", "encrypted"), [
    ("permissive", True, True), ("enforcing", False, True), ("disabled", True, False)])
def test_http_uses_tls_by_the_mode_of_the_server(mode, plain, encrypted, tmp_path):
    pytest.importorskip("cryptography", reason="certificates of tests are made with it")
    from certificates import Ca

    ca = Ca(tmp_path)
    cert, key = ca.make("server")
    acceptor = Acceptor(ServerLimits(), mode, server_context(
        TlsConfig(mode=mode, cert_path=cert, key_path=key)))

    async def status(address, context):
        try:
            reader, writer = await asyncio.open_connection(*address, ssl=context)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.read()
            writer.transport.abort()
        except OSError:
            return 0
        return int(answer.split()[1]) if answer else 0

    async def test():
        server = HttpStatusServer(BrokerConfig(), acceptor=acceptor)
        address = await server.start("127.0.0.1", 0)
        assert await status(address, None) == (200 if plain else 0)
        assert await status(address, ssl.create_default_context(cafile=ca.path)) == (200 if encrypted else 0)
        await server.stop()
        assert len(acceptor.limits) == 0
        assert sum(acceptor.failures.values()) == (not plain) + (not encrypted)
    run(test)


@pytest.mark.parametrize("kind", [exposition_module.CLASSIC, exposition_module.OPENMETRICS])
def test_metrics_are_made_in_steps_and_are_the_same_text(store, broker, kind):
    """One step of all samples kept the event loop waiting, and all of them were in memory together."""
    for n in range(200):
        broker.traffic.take_in(f"topic{n}", "normal", 1, 229)
        broker.offsets.commit("g", f"topic{n}", 0, 0)
    store.stats = dict
    pauses = []
    made = Exposition("c", "b", lambda: pauses.append(1))
    made.broker = broker
    steps = made.text(kind)
    library = generate_openmetrics if kind == exposition_module.OPENMETRICS else generate_latest
    whole = library(made._registry)

    def lines(text):
        """Without the values of the machine and the process, which change."""
        return [line if "topic=" in line or line[0] == "#" else line.rsplit(" ", 1)[0]
                for line in text.decode().splitlines() if 'thread="' not in line]  # a thread of another test may end

    assert lines(steps) == lines(whole)
    assert len(pauses) >= 2 * steps.count(b"\n") // (2 * exposition_module.STEP)
