"""What the parts of a broker share."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import IncorrectState
from faststream.middlewares import AckPolicy

from tailrace.client.instance import Target
from tailrace.client.telemetry import Telemetry
from tailrace_faststream.producer import RocketmqProducer

__all__ = ["RocketmqBrokerConfig", "RocketmqPublisherConfig", "RocketmqSubscriberConfig", "make_rocketmq_logger_state"]


@dataclass(kw_only=True)
class RocketmqBrokerConfig(BrokerConfig):
    """The servers, and the producer of a broker."""

    producer: RocketmqProducer = field(default_factory=RocketmqProducer)
    target: Target | None = None
    telemetry: Telemetry | None = None

    @property
    def servers(self) -> Target:
        """The servers. Raises IncorrectState for a router that is not included in a broker."""
        if self.target is None:
            raise IncorrectState("the router is not included in a broker")
        return self.target


@dataclass(kw_only=True)
class RocketmqSubscriberConfig(SubscriberUsecaseConfig):
    """The options of a subscriber."""

    _outer_config: RocketmqBrokerConfig = field(default_factory=RocketmqBrokerConfig)
    topic: str
    group: str
    tags: str = "*"
    sql: str = ""
    start: str = "first"
    in_order: bool = False
    max_workers: int = 1
    max_reconsume_times: int = 16
    invisible_s: float = 60.0
    topic_queues: int = 4
    batch: bool = False
    max_records: int = 32

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy: of the subscriber, else of its routers and the broker, else NACK_ON_ERROR."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class RocketmqSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What the schema says of a subscriber."""

    topic: str


@dataclass(kw_only=True)
class RocketmqPublisherConfig(PublisherUsecaseConfig):
    """The options of a publisher."""

    _outer_config: RocketmqBrokerConfig = field(default_factory=RocketmqBrokerConfig)
    topic: str
    tags: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reply_to: str = ""


@dataclass(kw_only=True)
class RocketmqPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What the schema says of a publisher."""

    topic: str


_ID_LENGTH: Final = 10


class _LoggerStorage(DefaultLoggerStorage):
    """The logger of a broker, with columns for topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 5}
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: Any) -> Any:
        found = self._get_logger_ref()
        if not found:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items())
            found = get_broker_logger(
                name="rocketmq", default_context=dict.fromkeys(self._widths, ""), message_id_ln=_ID_LENGTH,
                fmt=f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-{_ID_LENGTH}s - %(message)s",
                context=context, log_level=self.logger_log_level)
            self._logger_ref.add(found)
        return found


make_rocketmq_logger_state = partial(make_logger_state, default_storage_cls=_LoggerStorage)
