"""OpenTelemetry: spans and metrics of producers and push consumers, and the context in properties of messages.

Names follow the semantic conventions for messaging. It needs the package opentelemetry-api (``tailrace[otel]``); the
program chooses the SDK and the exporter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

from tailrace.client.send_result import SendResult
from tailrace.env.clock import SystemClock
from tailrace.errors import MissingPackageError, RemotingCommandError
from tailrace.formats.names import SHARDING_KEY
from tailrace.model import Message, MessageExt

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

__all__ = ["Telemetry"]

_NAME: Final = "tailrace"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Buckets that the conventions advise."""


@final
class Telemetry:
    """Pass it to a client as ``telemetry``; several clients can share it.

    Without arguments the global providers of OpenTelemetry are used. Raises MissingPackageError.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        try:
            from opentelemetry import metrics, propagate, trace  # noqa: PLC0415 - an optional package
        except ImportError:
            raise MissingPackageError("spans and metrics", "opentelemetry-api", "otel") from None
        self._trace, self._propagate = trace, propagate
        self._clock = SystemClock()
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages that were to be sent to a broker")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages that a listener got")
        self._sending = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of a send",
            explicit_bucket_boundaries_advisory=_SECONDS)
        self._processing = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of a call of a listener",
            explicit_bucket_boundaries_advisory=_SECONDS)

    @contextlib.contextmanager
    def sending(
        self, messages: Sequence[Message], group: str, operation: str = "send"
    ) -> Iterator[tuple[list[Message], Span]]:
        """Record a send; yields the messages with the context in their properties, and the span."""
        first = messages[0]
        common = _common(operation, "send", first.topic)
        span = self._tracer.start_span(f"{operation} {first.topic}", kind=self._trace.SpanKind.PRODUCER, attributes={
            **common, **_of_messages(messages), "messaging.rocketmq.client_group": group,
            "messaging.rocketmq.message.type": _kind(first, operation)})
        began_ns = self._clock.monotonic_ns()
        with self._ended(span, common) as labels:
            carrier: dict[str, str] = {}
            self._propagate.inject(carrier, self._trace.set_span_in_context(span))
            carrier = {name: value for name, value in carrier.items() if value}
            try:
                yield [replace(one, properties={**one.properties, **carrier}) for one in messages], span
            except BaseException as error:
                labels["error.type"] = _error_type(error)
                raise
            finally:
                self._sent.add(len(messages), labels)
                self._sending.record(self._since(began_ns), labels)

    def _since(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / 1e9

    @staticmethod
    def stored(span: Span, result: SendResult) -> None:
        """Note the place of a stored message."""
        span.set_attributes({
            "messaging.message.id": result.msg_id, "messaging.destination.partition.id": str(result.queue_id)})

    @contextlib.contextmanager
    def processing(self, messages: Sequence[MessageExt], group: str) -> Iterator[dict[str, Any]]:
        """Record a call of a listener, in the context of its message; the caller adds ``error.type`` to what it gets.

        The span of one message is a child of the producer's span, that of a batch has links to all.
        """
        first = messages[0]
        common = {**_common("process", "process", first.topic), "messaging.consumer.group.name": group}
        contexts = [self._propagate.extract(_carrier(one.properties)) for one in messages]
        links = [self._trace.Link(self._trace.get_current_span(one).get_span_context()) for one in contexts]
        span = self._tracer.start_span(
            f"process {first.topic}", contexts[0] if len(messages) == 1 else None,
            kind=self._trace.SpanKind.CONSUMER, links=[one for one in links if one.context.is_valid],
            attributes={
                **common, **_of_messages(messages), "messaging.destination.partition.id": str(first.queue_id),
                "messaging.rocketmq.client_group": group})
        if len(messages) == 1:
            span.set_attribute("messaging.message.id", first.unique_key or first.msg_id)
        began_ns = self._clock.monotonic_ns()
        with self._ended(span, common) as labels:
            try:
                yield labels
            finally:
                self._consumed.add(len(messages), labels)
                self._processing.record(self._since(began_ns), labels)

    @contextlib.contextmanager
    def _ended(self, span: Span, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Make a span the current one and end it; ``error.type`` in the labels marks a failure."""
        labels = dict(common)
        try:
            with self._trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield labels
        finally:
            if "error.type" in labels:
                span.set_attribute("error.type", labels["error.type"])
                span.set_status(self._trace.StatusCode.ERROR, labels["error.type"])
            span.end()


def _common(operation: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "rocketmq", "messaging.operation.name": operation, "messaging.operation.type": kind,
        "messaging.destination.name": topic}


def _of_messages(messages: Sequence[Message | MessageExt]) -> dict[str, Any]:
    if len(messages) > 1:
        return {"messaging.batch.message_count": len(messages)}
    one = messages[0]
    found: dict[str, Any] = {"messaging.message.body.size": len(one.body) if one.body else 0}
    if one.tags:
        found["messaging.rocketmq.message.tag"] = one.tags
    if one.keys and not isinstance(one.keys, str):
        found["messaging.rocketmq.message.keys"] = list(one.keys)
    return found


def _kind(message: Message, operation: str) -> str:
    if operation == "send_in_transaction":
        return "transaction"
    if message.delay is not None or message.deliver_at is not None or message.delay_level:
        return "delay"
    return "fifo" if SHARDING_KEY in message.properties else "normal"


def _error_type(error: BaseException) -> str:
    return str(error.code) if isinstance(error, RemotingCommandError) else type(error).__name__


def _carrier(properties: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in properties.items()}
