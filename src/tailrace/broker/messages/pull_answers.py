"""The answers to remoting requests of pulls."""

from __future__ import annotations

from typing import Final

from tailrace.broker.messages.pulls import Pulled
from tailrace.formats.remoting import INT32, RemotingCommand, ResponseCode, SerializeType, encode
from tailrace.model import GetMessageStatus
from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.node.topic_config import TopicConfig

__all__ = ["answer_of", "parts_of_answer"]


def answer_of(request: RemotingCommand, pulled: Pulled) -> RemotingCommand:
    """Return the answer to a remoting request."""
    code, remark, (next_begin, low, high, *delta), topic_sys_flag, group_sys_flag, suggested, body = pulled
    ext = {
        "suggestWhichBrokerId": str(suggested), "nextBeginOffset": str(next_begin), "minOffset": str(low),
        "maxOffset": str(high)}
    if topic_sys_flag is not None:
        ext["topicSysFlag"] = str(topic_sys_flag)
    if group_sys_flag is not None:
        ext["groupSysFlag"] = str(group_sys_flag)
    if delta:
        ext["offsetDelta"] = str(delta[0])
    return request.answer(code, remark, ext, body)


_OPAQUE: Final = 0x41424344
_PLACE: Final = 5_647_382_910_192_837, 1_234_987_654_321_000, 9_182_736_455_463_728
"""Next offset, least and next one of the queue, of a sample."""


def parts_of_answer(topic: TopicConfig, group: SubscriptionGroupConfig, kind: SerializeType) -> tuple[bytes, ...]:
    """Return the parts around the fields of an answer with messages, cut from one that the ordinary encoder makes.

    The order of the fields is that of ``kernels.shared.pull_head``.
    """
    request = RemotingCommand(0, opaque=_OPAQUE, serialize_type=kind)
    sample = answer_of(request, Pulled(
        ResponseCode.SUCCESS, GetMessageStatus.FOUND.name, _PLACE, topic.topic_sys_flag, group.group_sys_flag))
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
