"""What the messages of a batch need from a broker, compared with its settings before the manifest of the batch.

A broker refuses a message over one of these limits in each try, and each try of a batch sends the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import MessageIllegalError
from tailrace.formats.commitlog import MAX_PROPERTIES_LENGTH, MAX_TOPIC_LENGTH
from tailrace.formats.remoting import FRAME_MAX

__all__ = ["Need", "joined", "needs_of", "refuse"]

_REST: Final = MAX_PROPERTIES_LENGTH + MAX_TOPIC_LENGTH + 512
"""Greatest length of a record, or of a request, without the body."""
_COLUMNS: Final = ("body", "queueId", "deliverAt")


@dataclass(frozen=True, slots=True)
class Need:
    """The extremes of the messages of a topic: the longest body, the greatest queue and the last delivery time.

    Without a queue it is -1, and without a delivery time 0.
    """

    topic: str
    body: int
    queue_id: int = -1
    deliver_at: int = 0


def needs_of(rows: pa.RecordBatch) -> list[Need]:
    """Return the needs of staged rows, one for each topic."""
    columns = [rows["topic"], pc.binary_length(rows["body"]), rows["queueId"], rows["deliverAt"]]
    found = pa.table(columns, names=["topic", *_COLUMNS]).group_by("topic", use_threads=False).aggregate(
        [(name, "max") for name in _COLUMNS])
    return [
        Need(row["topic"], row["body_max"], -1 if row["queueId_max"] is None else row["queueId_max"],
             row["deliverAt_max"] or 0)
        for row in found.to_pylist()]


def joined(needs: Iterable[Need]) -> tuple[Need, ...]:
    """Return one need for each topic, in the order of the topics."""
    found: dict[str, Need] = {}
    for one in needs:
        known = found.get(one.topic, one)
        found[one.topic] = Need(
            one.topic, max(one.body, known.body), max(one.queue_id, known.queue_id),
            max(one.deliver_at, known.deliver_at))
    return tuple(found[topic] for topic in sorted(found))


def refuse(need: Need, queues: int, brokers: Mapping[str, Mapping[str, str]], now_ms: int) -> None:
    """Raise MessageIllegalError if a broker of the topic would refuse one of the messages.

    ``queues`` is the number of its queues that can be written, and ``brokers`` has the settings of each broker by
    name. A setting that a broker does not have is no limit.
    """
    if need.queue_id >= queues:
        raise MessageIllegalError("queueId", f"{need.queue_id}, topic {need.topic} has {queues} writable queues")
    for broker, settings in brokers.items():
        limits = {
            name: int(settings[name]) - less
            for name, less in (("maxMessageSize", 0), ("mappedFileSizeCommitLog", _REST))
            if settings.get(name, "").isdecimal()}
        name, limit = min({**limits, "a frame": FRAME_MAX - _REST}.items(), key=lambda one: one[1])
        if need.body > limit:
            raise MessageIllegalError(
                "body", f"of a message of {need.topic} has {need.body} bytes, and broker {broker} takes {limit} "
                f"because of {name}")
        longest = settings.get("timerMaxDelaySec", "")
        if settings.get("timerWheelEnable") == "false":
            longest = "0"
        if longest.isdecimal() and need.deliver_at - now_ms > int(longest) * 1000:
            raise MessageIllegalError(
                "deliverAt", f"of a message of {need.topic} is {(need.deliver_at - now_ms) // 1000} s from now, over "
                f"timerMaxDelaySec={longest} of broker {broker}")
