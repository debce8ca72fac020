"""Options of the data source: parsed and checked as a whole before a query starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tailrace.config import StoreConfig, parse_properties
from tailrace.errors import ConfigError

__all__ = ["BODY_FORMS", "ReadOptions", "parse_options"]

BODY_FORMS = ("stored", "decoded", "none")
_KNOWN = frozenset({
    "path", "topic", "subscribe", "subscribepattern", "queueid", "startingoffsets",
    "endingoffsets", "startingtimestamp", "endingtimestamp", "startingcommitlogoffset",
    "endingcommitlogoffset", "columns", "body", "store", "config", "splitbytes", "minpartitions",
})
_FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. Ends are exclusive; times are store times in ms."""

    path: str
    store: str = ""
    topics: frozenset[str] = frozenset()
    topic_pattern: str = ""
    queue_id: int = -1
    starting_offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ending_offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    starting_timestamp: int = 0
    ending_timestamp: int = _FOREVER
    starting_commit_log_offset: int = 0
    ending_commit_log_offset: int = _FOREVER
    columns: tuple[str, ...] = ()
    body: str = "stored"
    config_file: str = ""
    split_bytes: int = 64 << 20
    min_partitions: int = 1

    def wants(self, topic: str) -> bool:
        """Whether a topic is read."""
        if self.topics:
            return topic in self.topics
        return not self.topic_pattern or re.fullmatch(self.topic_pattern, topic) is not None

    def store_config(self) -> StoreConfig:
        """Settings of the ``config`` file."""
        if not self.config_file:
            return StoreConfig()
        return StoreConfig.from_properties(
            parse_properties(Path(self.config_file).read_text("utf-8")))


def parse_options(options: Mapping[str, str], column_names: tuple[str, ...]) -> ReadOptions:
    """Options from their text; names in any case. Raises ConfigError with every problem."""
    values = {name.lower(): value for name, value in options.items()}
    problems = [f"unknown option {name}" for name in sorted(set(values) - _KNOWN)]

    def number(name: str, default: int, low: int = 0) -> int:
        text = values.get(name.lower())
        if text is None:
            return default
        if not text.isdigit() or int(text) < low:
            problems.append(f"{name}={text} is not a whole number of at least {low}")
            return default
        return int(text)

    def offsets(name: str, fixed: str) -> dict[str, dict[str, int]]:
        text = values.get(name.lower(), fixed)
        if text == fixed:
            return {}
        try:
            found = orjson.loads(text)
            return {
                topic: {str(int(q)): int(offset) for q, offset in queues.items()}
                for topic, queues in found.items()
            }
        except (ValueError, AttributeError, TypeError):
            problems.append(
                f'{name}={text} is neither {fixed} nor JSON like {{"topic": {{"0": 23}}}}')
            return {}

    chosen = [name for name in ("topic", "subscribe", "subscribepattern") if values.get(name)]
    if len(chosen) > 1:
        problems.append(f"only one of topic, subscribe and subscribePattern, not {', '.join(chosen)}")
    names = values.get("topic") or values.get("subscribe") or ""
    pattern = values.get("subscribepattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        problems.append(f"subscribePattern={pattern} is no regular expression: {error}")
    columns = tuple(name.strip() for name in values.get("columns", "").split(",") if name.strip())
    if unknown := [name for name in columns if name not in column_names]:
        problems.append(f"columns={','.join(unknown)}: known are {', '.join(column_names)}")
    body = values.get("body", "stored")
    if body not in BODY_FORMS:
        problems.append(f"body={body} is not one of {', '.join(BODY_FORMS)}")
    path = values.get("path", "")
    if not path:
        problems.append("no path: say load(DIRECTORY)")
    config_file = values.get("config", "")
    if config_file and not Path(config_file).is_file():
        problems.append(f"config={config_file} is not a file")
    made = ReadOptions(
        path=path,
        store=values.get("store", "") or Path(path).name,
        topics=frozenset(name.strip() for name in names.split(",") if name.strip()),
        topic_pattern=pattern,
        queue_id=number("queueId", -1),
        starting_offsets=offsets("startingOffsets", "earliest"),
        ending_offsets=offsets("endingOffsets", "latest"),
        starting_timestamp=number("startingTimestamp", 0),
        ending_timestamp=number("endingTimestamp", _FOREVER),
        starting_commit_log_offset=number("startingCommitLogOffset", 0),
        ending_commit_log_offset=number("endingCommitLogOffset", _FOREVER),
        columns=columns,
        body=body,
        config_file=config_file,
        split_bytes=number("splitBytes", 64 << 20, 1),
        min_partitions=number("minPartitions", 1, 1),
    )
    if problems:
        raise ConfigError(*problems)
    return made
