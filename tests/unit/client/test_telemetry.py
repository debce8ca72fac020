"""Spans, metrics and the context in properties, with the SDK's exporters in memory."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from fake_brokers import FakeRemoting, LoopClock, run
from fake_consumers import broker, consumer

from tailrace import Message
from tailrace.client import AsyncProducer, instance
from tailrace.client.telemetry import Telemetry
from tailrace.errors import RemotingCommandError
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.remoting import ResponseCode

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is not installed")


@pytest.fixture(autouse=True)
def loop_kind(monkeypatch):
    """In virtual time one loop is like another."""
    monkeypatch.setattr(instance, "RemotingClient", FakeRemoting)


@pytest.fixture
def recorded():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    yield Telemetry(tracers, MeterProvider([reader])), spans.get_finished_spans, reader, tracers
    tracers.shutdown()


def points(reader):
    """Name of each metric: counts by operation and error."""
    found = {}
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        found[metric.name] = {
            (p.attributes["messaging.operation.name"], p.attributes.get("error.type")): (
                p.value if hasattr(p, "value") else p.count) for p in metric.data.data_points}
    return found


def test_a_listener_runs_in_the_trace_of_the_program_that_sent(recorded):
    telemetry, spans, reader, tracers = recorded

    async def test():
        fake = broker(t=1)
        tracer = tracers.get_tracer("program")

        async def listen(message):
            with tracer.start_as_current_span(f"own {message.body.decode()}"):
                await asyncio.sleep(0)
            return message.body != b"bad"

        async with AsyncProducer(namesrv="n:1", group="p", clock=LoopClock(), telemetry=telemetry) as producer, \
                consumer(listen, telemetry=telemetry):
            with tracer.start_as_current_span("program"):
                await producer.send(Message(topic="t", body=b"good", tags="x", keys=["k"]))
            await producer.send(Message(topic="t", body=b"bad"))
            await asyncio.sleep(2)
            fake.refuse[Code.SEND_MESSAGE_V2] = ResponseCode.NO_PERMISSION
            with pytest.raises(RemotingCommandError):
                await producer.send(Message(topic="t", body=b"refused"))
            assert fake.count(Code.CONSUMER_SEND_MSG_BACK) == 1

    run(test)
    by_name = {}
    for span in spans():
        by_name.setdefault(span.name, []).append(span)
    [program], [own, own_bad] = by_name["program"], [*by_name["own good"], *by_name["own bad"]]
    send, send_bad, refused = by_name["send t"]
    process, process_bad = by_name["process t"]
    assert [send.parent.span_id, process.parent.span_id, own.parent.span_id] == [
        program.context.span_id, send.context.span_id, process.context.span_id]
    assert own_bad.context.trace_id == send_bad.context.trace_id != program.context.trace_id
    assert dict(send.attributes) == {
        "messaging.system": "rocketmq", "messaging.operation.name": "send", "messaging.operation.type": "send",
        "messaging.destination.name": "t", "messaging.message.body.size": 4, "messaging.rocketmq.message.tag": "x",
        "messaging.rocketmq.message.keys": ("k",), "messaging.rocketmq.client_group": "p",
        "messaging.rocketmq.message.type": "normal", "messaging.destination.partition.id": "0",
        "messaging.message.id": process.attributes["messaging.message.id"]}
    assert process.attributes["messaging.consumer.group.name"] == "g"
    assert (process_bad.attributes["error.type"], process_bad.status.is_ok) == ("retry", False)
    assert (refused.attributes["error.type"], refused.status.is_ok) == ("16", False)
    assert points(reader) == {
        "messaging.client.sent.messages": {("send", None): 2, ("send", "16"): 1},
        "messaging.client.operation.duration": {("send", None): 2, ("send", "16"): 1},
        "messaging.client.consumed.messages": {("process", None): 1, ("process", "retry"): 1},
        "messaging.process.duration": {("process", None): 1, ("process", "retry"): 1}}


def test_the_span_of_a_batch_has_links_to_its_messages(recorded):
    telemetry, spans, _, _ = recorded

    async def test():
        broker(t=1)

        async def listen(messages):
            await asyncio.sleep(1)

        async with AsyncProducer(namesrv="n:1", clock=LoopClock(), telemetry=telemetry) as producer:
            for number in range(3):
                await producer.send(Message(topic="t", body=b"%d" % number))
            async with consumer(listen, telemetry=telemetry, batch_size=3):
                await asyncio.sleep(3)

    run(test)
    sent = [span.context.span_id for span in spans() if span.name == "send t"]
    [process] = [span for span in spans() if span.name == "process t"]
    assert [link.context.span_id for link in process.links] == sent
    assert process.attributes["messaging.batch.message_count"] == 3


def test_a_plain_listener_has_the_context_of_its_call():
    """Threads do not inherit it by themselves."""
    from tailrace.client.failures import Failures
    from tailrace.client.listening import ListenerCalls

    name = contextvars.ContextVar("name")

    async def test():
        calls = ListenerCalls(lambda message: name.get() == "this call", "g", 1, Failures(None, "g"))
        try:
            name.set("this call")
            assert await calls.result([None]) is True
        finally:
            calls.close()

    asyncio.run(test())
