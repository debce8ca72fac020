"""Subscriptions of a consumer: topics with a tag expression or an expression of SQL92."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from tailrace.formats.commitlog import java_string_hash
from tailrace.model import MessageExt

__all__ = ["Sql", "Subscription", "Topics", "subscriptions"]

_COMPARES: Final = re.compile(r"\s(?:[<>]=?|<>|=)|(?:[<>]=?|=)\s|=\s*'|\s(?:in|is|between|like|not)\s", re.IGNORECASE)
_JOINS: Final = re.compile(r"\s+(?:or|and|\||&&?)\s+|,\s+", re.IGNORECASE)
"""Comparisons and joins of SQL, which no tag has by intention: a tag expression has only ||."""


@final
@dataclass(frozen=True, slots=True)
class Sql:
    """An expression of SQL92 over properties, such as ``Sql("price > 100 AND region IN ('eu', 'us')")``."""

    expression: str


Topics = str | Iterable[str] | Mapping[str, str | Sql]
"""One topic, several, or topics with a tag expression or `Sql` each."""


@final
@dataclass(slots=True)
class Subscription:
    """A topic with a tag expression (``"new || paid"``, ``"*"`` for all) or an expression of SQL92."""

    topic: str
    expression: str = "*"
    is_sql: bool = False
    version: int = 0

    @classmethod
    def of(cls, topic: Any, tags: Any = "*", sql: str = "") -> Subscription:
        """Return the subscription.

        Raises ValueError if both expressions are given, if no tag is named, or if the tags look like SQL.
        """
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"topic is the name of a topic, not {topic!r}")
        if not isinstance(tags, str):
            raise TypeError(f'tags is one text such as "new || paid", not {tags!r}')
        if sql and tags != "*":
            raise ValueError("tags and sql are both given; sql has the property TAGS")
        made = cls(topic, sql or tags, bool(sql))
        if not sql and tags != "*" and not made.tags:
            raise ValueError(f"tags={tags!r} names no tag; \"*\" takes all messages")
        for tag in made.tags:
            if _COMPARES.search(tag):
                raise ValueError(f"tags={tags!r} looks like SQL; write Sql({tags!r}), or give it as sql")
            if _JOINS.search(tag):
                raise ValueError(f'tags={tags!r} looks like SQL; write "{_JOINS.sub(" || ", tags)}"')
        return made

    @property
    def kind(self) -> str:
        """Type of the expression, by the name in the protocol."""
        return "SQL92" if self.is_sql else "TAG"

    @property
    def tags(self) -> list[str]:
        """Tags of the expression; empty for all messages and for SQL92."""
        if self.is_sql or self.expression == "*":
            return []
        return [tag.strip() for tag in self.expression.split("||") if tag.strip()]

    def keep(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Return the messages that match. A broker compares only hashes of tags, so other messages may come."""
        wanted = set(self.tags)
        return [message for message in messages if message.tags in wanted] if wanted else messages

    def to_json(self) -> dict[str, Any]:
        """Return RocketMQ's SubscriptionData."""
        return {
            "classFilterMode": False, "codeSet": sorted({java_string_hash(tag) for tag in self.tags}),
            "expressionType": self.kind, "subString": self.expression, "subVersion": self.version,
            "tagsSet": self.tags, "topic": self.topic}


def subscriptions(topics: Topics | None) -> list[Subscription]:
    """Return the subscriptions of topics, to all messages of those without an expression. Raises ValueError."""
    if not isinstance(topics, Mapping):
        return [Subscription.of(topic) for topic in ([topics] if isinstance(topics, str) else topics or ())]
    return [Subscription.of(topic, sql=wanted.expression) if isinstance(wanted, Sql) else Subscription.of(topic, wanted)
            for topic, wanted in topics.items()]
