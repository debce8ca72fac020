"""The subscription of a consumer group to a topic, as its members and requests give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tailrace.formats.commitlog import java_string_hash

__all__ = ["SUB_ALL", "TAG", "SubscriptionData"]

SUB_ALL: Final = "*"
TAG: Final = "TAG"


@dataclass(slots=True)
class SubscriptionData:
    """The subscription of a group to a topic; ``codes`` are the hashes of its tags, None means every message."""

    topic: str
    sub_string: str = SUB_ALL
    tags: tuple[str, ...] = ()
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False
    codes: frozenset[int] | None = None

    @property
    def wants(self) -> tuple[str, str]:
        """What it selects: the type and the text of its expression."""
        return self.expression_type, self.sub_string

    @property
    def is_tag(self) -> bool:
        """True if it filters by tags, False if by an expression over properties."""
        return self.expression_type == TAG

    @classmethod
    def parse(
        cls, topic: str, expression: str, sub_version: int = 0, expression_type: str = TAG
    ) -> SubscriptionData:
        """Return the subscription of an expression ``tag || tag``; blank text or ``*`` means every message."""
        made = cls(topic, expression or SUB_ALL, (), sub_version, expression_type or TAG)
        if made.expression_type == TAG and made.sub_string != SUB_ALL:
            made.tags = tuple(t for t in (p.strip() for p in expression.split("||")) if t)
            if not made.tags:
                raise ValueError("subString split error")
            made.codes = frozenset(map(java_string_hash, made.tags))
        return made

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SubscriptionData:
        """Return a subscription from its JSON object in a heartbeat."""
        made = cls(
            str(value.get("topic", "")),
            str(value.get("subString") or SUB_ALL),
            tuple(str(t) for t in value.get("tagsSet") or ()),
            int(value.get("subVersion") or 0),
            str(value.get("expressionType") or TAG),
            bool(value.get("classFilterMode", False)),
        )
        codes = {int(c) for c in value.get("codeSet") or ()}
        if not codes and made.expression_type == TAG and made.sub_string != SUB_ALL:
            made = cls.parse(made.topic, made.sub_string, made.sub_version)
        elif codes and made.is_tag and made.sub_string != SUB_ALL:
            made.codes = frozenset(codes)
        return made

    def to_json(self) -> dict[str, Any]:
        """Members by RocketMQ's names."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.codes or ()),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }
