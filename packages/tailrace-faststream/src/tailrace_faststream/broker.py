"""The FastStream broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from tailrace.auth.signature import Credentials
from tailrace.client.arguments import in_ms, in_s
from tailrace.client.credentials import credentials_of
from tailrace.client.instance import InstanceShare, Target
from tailrace.client.producer import AsyncProducer
from tailrace.client.send_result import SendResult
from tailrace.client.telemetry import Telemetry
from tailrace.errors import MessageIllegalError, RemotingCommandError, RemotingError
from tailrace.formats.names import AUTO_CREATE_TOPIC_KEY_TOPIC
from tailrace.remoting.tls import TlsOptions, options_of
from tailrace.spellings import Duration, Time
from tailrace_faststream.config import RocketmqBrokerConfig, make_rocketmq_logger_state
from tailrace_faststream.message import Incoming, RocketmqMessage
from tailrace_faststream.producer import RocketmqProducer
from tailrace_faststream.registrator import RocketmqRegistrator
from tailrace_faststream.response import RocketmqPublishCommand

__all__ = ["RocketmqBroker"]


class RocketmqBroker(RocketmqRegistrator, BrokerUsecase[Incoming, AsyncProducer, RocketmqBrokerConfig]):
    """Connects FastStream with RocketMQ or Tailrace. docs/how-to/programs/frameworks.md describes it."""

    def __init__(
        self, *, namesrv: str = "", broker: str = "", timeout_ms: Duration = 3000, tls: bool | TlsOptions = False,
        credentials: Credentials | str | None = None, retries: int = 2, linger_ms: Duration = 0.0,
        compression: str | None = None, telemetry: Telemetry | None = None, graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY, decoder: Any = None, parser: Any = None, codec: Any = None,
        dependencies: Sequence[Any] = (), middlewares: Sequence[Any] = (), routers: Iterable[RocketmqRegistrator] = (),
        id_generator: Any = gen_cor_id, specification_url: str | None = None, description: str | None = None,
        tags: Iterable[Any] = (), logger: Any = EMPTY, log_level: int = logging.INFO, apply_types: bool = True,
        serializer: Any = EMPTY, provider: Any = None, context: ContextRepo | None = None,
    ) -> None:
        """Set it up; nothing is sent before ``connect`` or ``start``.

        ``namesrv`` is one or more name servers, separated by ``;``. ``broker`` names one broker instead. The next six
        arguments are those of `AsyncProducer`, the others those of every broker of FastStream. Raises ConfigError.
        """
        target = Target(
            namesrv, broker, round(in_ms("timeout_ms", timeout_ms)), tls=options_of(tls),
            credentials=credentials_of(credentials))
        super().__init__(
            routers=routers, retries=retries, linger_ms=linger_ms, compression=compression,
            config=RocketmqBrokerConfig(
                target=target, telemetry=telemetry, producer=RocketmqProducer(parser, decoder),
                broker_middlewares=middlewares, broker_parser=parser, broker_decoder=decoder, broker_codec=codec,
                logger=make_rocketmq_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types, serializer=serializer, provider=provider or dependency_provider,
                    context=context or ContextRepo()),
                broker_dependencies=dependencies, graceful_timeout=graceful_timeout, ack_policy=ack_policy,
                id_generator=id_generator, extra_context={"broker": self}),
            specification=BrokerSpec(
                description=description, url=[specification_url or namesrv or broker], protocol="rocketmq",
                protocol_version="5", tags=tags, security=None))

    async def _connect(self) -> AsyncProducer:
        config = self.config.broker_config
        target = config.servers
        client = AsyncProducer(
            namesrv=target.namesrv, broker=target.broker, group="FASTSTREAM_PRODUCER", timeout_ms=target.timeout_ms,
            tls=target.tls or False, credentials=target.credentials, telemetry=config.telemetry,
            **self._connection_kwargs)
        config.producer.connect(client, config.fd_config._serializer, config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers. Raises RemotingError if no broker can be reached."""
        await self.connect()
        await super().start()

    async def stop(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        """Stop the subscribers, and close the connections."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if self._connection is not None:
                client, self._connection = self._connection, None
                self.config.broker_config.producer.disconnect()
                await client.close()

    async def ping(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109 - FastStream's name
        """Return whether a server answers within ``timeout`` seconds (without it: the timeout of requests)."""
        share = InstanceShare(self.config.broker_config.servers)
        try:
            async with asyncio.timeout(None if timeout is None else in_s("timeout", timeout)):
                await share.instance.routes.of(AUTO_CREATE_TOPIC_KEY_TOPIC)
        except RemotingCommandError:
            return True
        except (RemotingError, TimeoutError):
            return False
        finally:
            await share.close()
        return True

    async def publish(
        self, message: Any = None, topic: str = "", *, tags: str | None = None, keys: Sequence[str] = (),
        delay: Duration | None = None, deliver_at: Time | None = None, ordering_key: str | None = None,
        headers: dict[str, str] | None = None, correlation_id: str | None = None, reply_to: str = "",
    ) -> SendResult:
        """Store a message and return where it is.

        It is delivered after ``delay`` seconds, or at ``deliver_at`` (ms since 1970). Messages of one ``ordering_key``
        keep their order. A handler's result is published to the topic ``reply_to``. Raises MessageIllegalError, or
        RemotingError.
        """
        cmd = RocketmqPublishCommand(
            message, topic=topic, tags=tags, keys=keys, delay=delay, deliver_at=deliver_at, ordering_key=ordering_key,
            headers=headers, correlation_id=correlation_id or self.config.id_generator(), reply_to=reply_to)
        sent: SendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return sent

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str, tags: str | None = None, headers: dict[str, str] | None = None,
        correlation_id: str | None = None, reply_to: str = "",
    ) -> SendResult:
        """Store messages in one queue with one request, all or none, and return where the first one is.

        The options are those of each message. Raises MessageIllegalError, for example without a message, or
        RemotingError.
        """
        if not messages:
            raise MessageIllegalError("batch", "has no message")
        cmd = RocketmqPublishCommand(
            *messages, topic=topic, tags=tags, headers=headers,
            correlation_id=correlation_id or self.config.id_generator(), reply_to=reply_to)
        sent: SendResult = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return sent

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", *, tags: str | None = None, keys: Sequence[str] = (),
        headers: dict[str, str] | None = None, correlation_id: str | None = None, timeout: Duration = 3.0,  # noqa: ASYNC109
    ) -> RocketmqMessage:
        """Send a request and wait up to ``timeout`` seconds for the result of its handler.

        Raises RequestTimeoutError if none came, MessageIllegalError, or another RemotingError.
        """
        cmd = RocketmqPublishCommand(
            message, topic=topic, publish_type=PublishType.REQUEST, tags=tags, keys=keys, headers=headers,
            correlation_id=correlation_id or self.config.id_generator(), timeout=timeout)
        reply: RocketmqMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply
