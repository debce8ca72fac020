"""Subscribers and publishers in the AsyncAPI schema. AsyncAPI has no binding for RocketMQ."""

from __future__ import annotations

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from tailrace_faststream.config import (
    RocketmqBrokerConfig,
    RocketmqPublisherSpecificationConfig,
    RocketmqSubscriberSpecificationConfig,
)

__all__ = ["RocketmqPublisherSpecification", "RocketmqSubscriberSpecification"]


class RocketmqSubscriberSpecification(
    SubscriberSpecification[RocketmqBrokerConfig, RocketmqSubscriberSpecificationConfig]
):
    """A channel of the topic."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel by its name."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        return {self.name: SubscriberSpec(
            address=self.topic, description=self.description, operation=Operation(message=message, bindings=None),
            bindings=None)}


class RocketmqPublisherSpecification(
    PublisherSpecification[RocketmqBrokerConfig, RocketmqPublisherSpecificationConfig]
):
    """A channel of the topic."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The title, or a name from the topic."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel by its name."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        return {self.name: PublisherSpec(
            address=self.topic, description=self.config.description_,
            operation=Operation(message=message, bindings=None), bindings=None)}
