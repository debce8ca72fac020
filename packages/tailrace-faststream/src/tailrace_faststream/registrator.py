"""The decorators of brokers and routers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from tailrace.client.arguments import in_s
from tailrace.spellings import Duration
from tailrace_faststream.config import (
    RocketmqBrokerConfig,
    RocketmqPublisherConfig,
    RocketmqPublisherSpecificationConfig,
    RocketmqSubscriberConfig,
    RocketmqSubscriberSpecificationConfig,
)
from tailrace_faststream.message import Incoming
from tailrace_faststream.publisher import RocketmqPublisher
from tailrace_faststream.specification import (
    RocketmqPublisherSpecification,
    RocketmqSubscriberSpecification,
)
from tailrace_faststream.subscriber import RocketmqSubscriber

__all__ = ["RocketmqRegistrator", "RocketmqRouter"]

_NOT_IN_TOPICS: Final = re.compile(r"[^%|a-zA-Z0-9_-]")


class RocketmqRegistrator(Registrator[Incoming, RocketmqBrokerConfig]):
    """Has ``subscriber`` and ``publisher``."""

    def subscriber(  # type: ignore[override]
        self, topic: str, *, group: str, tags: str = "*", sql: str = "", start: str = "first", in_order: bool = False,
        max_workers: int = 1, max_reconsume_times: int = 16, invisible_s: Duration = 60.0, topic_queues: int = 4,
        batch: bool = False, max_records: int = 32,
        ack_policy: AckPolicy = EMPTY, no_reply: bool = False, dependencies: Sequence[Any] = (), parser: Any = None,
        decoder: Any = None, codec: Any = None, persistent: bool = True, title: str | None = None,
        description: str | None = None, include_in_schema: bool = True,
    ) -> RocketmqSubscriber:
        """Have the messages of a topic delivered to the decorated function; docs/how-to/programs/frameworks.md.

        ``group`` shares the messages among its members. ``tags`` ("new || paid") or ``sql`` chooses. ``start`` is
        where a new group begins: "first" or "last". ``max_workers`` messages are handled at a time. ``in_order``
        handles each queue message by message. With ``batch`` the function gets a list of up to ``max_records`` messages
        of one queue, which are acknowledged together. Raises SetupError for wrong values.
        """
        problems = [f"{name}={value!r} is not above 0" for name, value in (
            ("max_workers", max_workers), ("topic_queues", topic_queues), ("max_records", max_records))
            if not value > 0]
        if not group or not topic:
            problems.append("topic and group must be named")
        if wrong := sorted(set(_NOT_IN_TOPICS.findall(topic))):
            problems.append(f"topic={topic!r} has {' '.join(wrong)}: a subscriber has one topic, no pattern or path")
        if start not in {"first", "last"}:
            problems.append(f"start={start!r} is neither 'first' nor 'last'")
        if max_reconsume_times < 0:
            problems.append(f"max_reconsume_times={max_reconsume_times!r} is negative")
        invisible_s = in_s("invisible_s", invisible_s)
        if not 5 <= invisible_s <= 300:
            problems.append(f"invisible_s={invisible_s!r} is not from 5 to 300")
        config = RocketmqSubscriberConfig(
            _outer_config=self.config, _ack_policy=ack_policy, no_reply=no_reply or batch, topic=topic, group=group,  # type: ignore[arg-type]
            tags=tags, sql=sql, start=start, in_order=in_order, max_workers=max_workers,
            max_reconsume_times=max_reconsume_times, invisible_s=invisible_s, topic_queues=topic_queues, batch=batch,
            max_records=max_records)
        if in_order and config.ack_policy is AckPolicy.ACK_FIRST:
            problems.append("in_order does not go with AckPolicy.ACK_FIRST: the next message would not wait")
        if problems:
            raise SetupError("; ".join(problems))
        calls: CallsCollection[Any] = CallsCollection()
        specification = RocketmqSubscriberSpecificationConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema)
        made = RocketmqSubscriber(
            config, RocketmqSubscriberSpecification(self.config, specification, calls), calls)  # type: ignore[arg-type]
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=codec, dependencies_=dependencies)

    def publisher(  # type: ignore[override]
        self, topic: str, *, tags: str | None = None, headers: dict[str, str] | None = None, reply_to: str = "",
        persistent: bool = True, title: str | None = None, description: str | None = None, schema: Any = None,
        include_in_schema: bool = True,
    ) -> RocketmqPublisher:
        """Publish the results of the decorated function to a topic; or use what is returned to publish."""
        if not topic:
            raise SetupError("topic must be named")
        made = RocketmqPublisher(
            RocketmqPublisherConfig(
                _outer_config=self.config, topic=topic, tags=tags, headers=headers or {}, reply_to=reply_to),  # type: ignore[arg-type]
            RocketmqPublisherSpecification(self.config, RocketmqPublisherSpecificationConfig(  # type: ignore[arg-type]
                topic=topic, title_=title, description_=description, schema_=schema,
                include_in_schema=include_in_schema)))
        super().publisher(made, persistent=persistent)
        return made

    def include_router(self, router: Any, **options: Any) -> None:
        """Include a router. Raises TypeError for a router of another broker."""
        if not isinstance(router, RocketmqRegistrator):
            raise TypeError(f"a RocketmqRouter can be included, not {type(router).__name__}")
        super().include_router(router, **options)


class RocketmqRouter(RocketmqRegistrator, BrokerRouter[Incoming, RocketmqBrokerConfig]):
    """Subscribers and publishers that a broker includes; ``prefix`` is put before their topics."""

    def __init__(
        self, prefix: str = "", handlers: Iterable[Any] = (), *, dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (), routers: Iterable[RocketmqRegistrator] = (), parser: Any = None,
        decoder: Any = None, include_in_schema: bool | None = None, ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers, routers=routers, config=RocketmqBrokerConfig(
                prefix=prefix, broker_dependencies=dependencies, broker_middlewares=middlewares, broker_parser=parser,
                broker_decoder=decoder, include_in_schema=include_in_schema, ack_policy=ack_policy))
