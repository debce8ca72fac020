"""Limits of the endpoint: those of RocketMQ's ProxyConfig with their defaults, and bounds of Tailrace."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_SIZE: Final = 4 << 20
"""maxMessageSize: bytes of a body."""
MAX_USER_PROPERTY_SIZE: Final = 16 << 10
"""maxUserPropertySize: bytes of user properties, tag and keys together."""
USER_PROPERTY_MAX_NUM: Final = 128
MAX_MESSAGE_GROUP_SIZE: Final = 64
"""maxMessageGroupSize: a message group has fewer bytes."""
MAX_LITE_TOPIC_SIZE: Final = 64
"""maxLiteTopicSize: bytes of the name of a Lite topic."""
MAX_LITE_RENEWED: Final = 100
"""maxLiteRenewNumPerChannel: a Lite consumer with more unacknowledged messages gets no others."""
LITE_QUOTA_BUFFER: Final = 300
"""Lite topics that one call may name above the quota of the group."""
MAX_LITE_SYNC_RATE: Final = 5_000
"""maxSyncLiteSubscriptionRate: additions of Lite topics per second, of all clients."""
MAX_DELAY_TIME_MS: Final = 24 * 3_600_000
MAX_TRANSACTION_RECOVERY_S: Final = 3_600
DEFAULT_INVISIBLE_TIME_MS: Final = 60_000
"""defaultInvisibleTimeMills: of messages that the endpoint renews."""
MIN_INVISIBLE_TIME_FOR_RECV_MS: Final = 10_000
MAX_INVISIBLE_TIME_MS: Final = 12 * 3_600_000
MIN_LONG_POLLING_MS: Final = 5_000
MAX_LONG_POLLING_MS: Final = 20_000
RECEIVE_BATCH_SIZE: Final = 32
PRODUCER_MAX_ATTEMPTS: Final = 3
PRODUCER_BACKOFF_INITIAL_MS: Final = 10
PRODUCER_BACKOFF_MAX_MS: Final = 1_000
PRODUCER_BACKOFF_MULTIPLIER: Final = 2
RENEW_AHEAD_MS: Final = 10_000
"""renewAheadTimeMillis: a receipt is renewed when it has less than this left."""
RENEW_PERIOD_S: Final = 5.0
RENEW_MAX_TIME_MS: Final = 3 * 3_600_000
"""renewMaxTimeMillis: after this a message goes back by the retry policy of its group."""
RENEW_RETRY_TIMES: Final = 3
NACK_INVISIBLE_TIME_MS: Final = 1_000
"""Until a message is redelivered that could not be sent to the client."""
CLIENT_IDLE_MS: Final = 120_000
"""grpcClientIdleTimeMills: a connection without a call is closed."""

# Bounds of Tailrace; the proxy has none, or larger ones. Those of calls, clients and connections are settings.
MAX_REQUEST_BYTES: Final = 16 << 20
"""Bytes of one request; the proxy takes 130 MiB. Above it the call fails with RESOURCE_EXHAUSTED."""
PENDING_CALLS: Final = 12_000
HANDSHAKE_MS: Final = 10_000
"""Time of a handshake of TLS and HTTP/2; the proxy gives 120 s."""
MAX_SETTINGS_BYTES: Final = 256 << 10
"""Bytes of the settings of a client."""
MAX_CLIENT_VERSION: Final = 64
MAX_CLIENT_ID: Final = 1_024
MAX_MESSAGES_OF_SEND: Final = 1_024
MAX_ACK_ENTRIES: Final = 1_000
MAX_RENEWED: Final = 20_000
"""Messages of one client that are renewed; further ones are redelivered after their invisible time."""
MAX_TRANSACTION_ID: Final = 256
"""Characters of the id of a half message whose place is kept. Those of clients have 34."""
MAX_TRANSACTIONS: Final = 16_384
"""Half messages whose places are kept in memory, the latest ones; others are looked up in the log."""
