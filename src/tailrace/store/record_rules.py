"""Limits for records: names of topics, and the greatest length of each part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, final

from tailrace.config import StoreConfig
from tailrace.errors import MessageIllegalError
from tailrace.formats import names as N
from tailrace.formats.commitlog import (
    CRC_PROPERTY_LENGTH,
    END_FILE_MIN_BLANK_LENGTH,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH_V1,
    record_size,
)

__all__ = ["HONOURED_ALONE", "RecordRules", "refuse_in_batch"]

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_MOST_KNOWN: Final = 100_000
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_TIMES: Final = (N.TIMER_DELAY_SEC, N.TIMER_DELAY_MS, N.TIMER_DELIVER_MS)
HONOURED_ALONE: Final = frozenset({N.LITE_TOPIC, N.PRIORITY})
"""Properties that take effect only in a message that is sent by itself, and leave it in its topic."""


def refuse_in_batch(properties: Mapping[str, str], whose: str) -> None:
    """Raise MessageIllegalError for a property that takes effect only in a message that is sent by itself.

    A batch would store the message at its place in the queue: readable immediately although it has a delay, for
    consumers although its transaction has not ended, and not in its Lite topic. ``whose`` names the message.
    """
    why = ""
    if _number(properties.get(N.DELAY, "")) > 0:
        why = N.DELAY
    elif N.TIMER_OUT_MS not in properties:  # a timer that was delivered has that property
        why = next((name for name in _TIMES if properties.get(name)), "")
    if not why and properties.get(N.TRAN_MSG, "").lower() == "true":
        why = N.TRAN_MSG
    if not why and properties.get(N.LITE_TOPIC):
        why = N.LITE_TOPIC
    if not why and _number(properties.get(N.PRIORITY, "")) >= 0:
        why = N.PRIORITY
    if why:
        raise MessageIllegalError(
            "batch", f"{whose} has the property {why}={properties[why][:40]}, which a batch cannot honour; "
            "send such a message by itself")


def _number(text: str) -> int:
    return int(text) if _WHOLE.fullmatch(text) else -1


@final
class RecordRules:
    """Checks every record before it goes into the log. Any thread may call.

    ``known`` is filled with the bytes of valid topics.
    """

    def __init__(self, config: StoreConfig, known: dict[str, bytes]) -> None:
        self._config = config
        self._known = known

    def topic_bytes(self, topic: str) -> bytes:
        """Return the stored form of a topic. Raises MessageIllegalError for an invalid name."""
        known = self._known.get(topic)
        if known is not None:
            return known
        # A POP retry topic of the second form has a + between group and topic.
        if not _TOPIC.fullmatch(topic.replace("+", "_", 1) if topic.startswith(N.RETRY_GROUP_TOPIC_PREFIX) else topic):
            raise MessageIllegalError(
                "topic", f"{topic[:300]!r} must be one or more of letters, digits, %, |, - and _")
        raw = topic.encode()
        limit = MAX_TOPIC_LENGTH_V1
        of_group = topic.startswith((N.RETRY_GROUP_TOPIC_PREFIX, N.DLQ_GROUP_TOPIC_PREFIX))
        if of_group and self._config.auto_message_version_on_topic_len:
            limit = MAX_TOPIC_LENGTH
        if len(raw) > limit:
            raise MessageIllegalError("topic", f"{len(raw)} bytes, the limit is {limit}")
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known[topic] = raw
        return raw

    @property
    def appends_crc(self) -> bool:
        """True if records end with the checksum property."""
        return self._config.enabled_append_prop_crc

    def check_sizes(
        self, body: bytes, properties: bytes, topic: bytes, hosts: int, *, is_copy: bool = False
    ) -> None:
        """As ``check_lengths``, with the parts instead of their lengths."""
        separator = int(properties[-1:] != b"\x02")
        self.check_lengths(len(body), len(properties), len(topic), hosts, separator, is_copy=is_copy)

    def check_lengths(
        self, body: int, properties: int, topic: int, hosts: int, separator: int = 0, *, is_copy: bool = False
    ) -> None:
        """Raise MessageIllegalError if a part of a record has too many bytes.

        ``hosts`` is the length of both addresses together. ``separator`` is 1 if the properties need a
        separator before the checksum property. maxMessageSize does not apply to a copy of a stored message.
        """
        config = self._config
        if body > config.max_message_size and not is_copy:
            raise MessageIllegalError(
                "body", f"{body} bytes, maxMessageSize allows {config.max_message_size}")
        reserved = CRC_PROPERTY_LENGTH + separator if self.appends_crc else 0
        if properties + reserved > MAX_PROPERTIES_LENGTH:
            raise MessageIllegalError(
                "properties", f"{properties} bytes, the limit is {MAX_PROPERTIES_LENGTH - reserved}")
        size = record_size(hosts, body, topic, properties + reserved)
        if size + END_FILE_MIN_BLANK_LENGTH > config.mapped_file_size_commit_log:
            raise MessageIllegalError(
                "record", f"{size} bytes do not fit a CommitLog file of "
                f"{config.mapped_file_size_commit_log} (mappedFileSizeCommitLog)")

    def are_short(self, topic: int, hosts: int, longest: int, most: int) -> bool:
        """Return True if the longest body (``longest``) and the longest properties (``most``) fit one record."""
        config = self._config
        extra = CRC_PROPERTY_LENGTH + 1 if self.appends_crc else 0
        size = record_size(hosts, longest, topic, most + extra)
        return (
            longest <= config.max_message_size and most + extra <= MAX_PROPERTIES_LENGTH
            and size + END_FILE_MIN_BLANK_LENGTH <= config.mapped_file_size_commit_log
        )

    def bound(self, topic: int, hosts: int, count: int, size: int) -> int:
        """Return the greatest length of ``count`` records whose bodies and properties have ``size`` bytes."""
        extra = CRC_PROPERTY_LENGTH + 1 if self.appends_crc else 0
        return record_size(hosts, 0, topic, extra) * count + size

    def check_whole(self, bound: int) -> None:
        """Raise MessageIllegalError if a batch of ``bound`` bytes does not fit one segment."""
        if bound + END_FILE_MIN_BLANK_LENGTH > self._config.mapped_file_size_commit_log:
            raise MessageIllegalError(
                "batch", f"{bound} bytes do not fit a CommitLog file of "
                f"{self._config.mapped_file_size_commit_log} (mappedFileSizeCommitLog)")
