"""The header of an answer to a pull, and the parts from which the pull lane makes it."""

from __future__ import annotations

from typing import Final

from tailrace.formats.remoting import INT32, RemotingCommand, ResponseCode, SerializeType, encode
from tailrace.model import GetMessageStatus
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig

__all__ = ["answer_header", "parts_of_answer"]

_OPAQUE: Final = 0x41424344
_PLACE: Final = 5_647_382_910_192_837, 1_234_987_654_321_000, 9_182_736_455_463_728
"""Next offset, least and next one of the queue, of a sample."""


def answer_header(
    topic: TopicConfig, group: SubscriptionGroupConfig, next_begin: int, low: int, high: int,
    delta: int | None = None, *, suggested: int = 0,
) -> dict[str, str]:
    """Return the fields of every answer to a pull: the next offset, and the bounds of the queue.

    ``suggested`` is the id of the broker from which to pull next. For ``delta``, which only logical queues have, see
    `Place`.
    """
    header = {
        "suggestWhichBrokerId": str(suggested),
        "nextBeginOffset": str(next_begin),
        "minOffset": str(low),
        "maxOffset": str(high),
        "topicSysFlag": str(topic.topic_sys_flag),
        "groupSysFlag": str(group.group_sys_flag),
    }
    if delta is not None:
        header["offsetDelta"] = str(delta)
    return header


def parts_of_answer(topic: TopicConfig, group: SubscriptionGroupConfig, kind: SerializeType) -> tuple[bytes, ...]:
    """Return the parts around the fields of an answer with messages, cut from one that the ordinary encoder makes.

    The order of the fields is that of ``kernels.shared.pull_head``.
    """
    sample = RemotingCommand(0, opaque=_OPAQUE, serialize_type=kind).answer(
        ResponseCode.SUCCESS, GetMessageStatus.FOUND.name, answer_header(topic, group, *_PLACE))
    texts = [b"%d" % offset for offset in _PLACE]
    if kind == SerializeType.JSON:
        fields = [*texts, b"%d" % _OPAQUE]
    else:
        fields = [INT32.pack(_OPAQUE), *(INT32.pack(len(text)) + text for text in texts)]
    rest, parts = encode(sample), []
    for field in fields:
        part, found, rest = rest.partition(field)
        assert found, "the answer has every field, in this order"
        parts.append(part)
    return *parts, rest
