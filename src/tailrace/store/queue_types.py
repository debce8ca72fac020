"""Find which topics have batch ConsumeQueues, from ``config/topics.json`` and the two directories of queues."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.env.filesystem import FileSystem
from tailrace.env.whole_files import is_directory, read_if_there
from tailrace.errors import NotAStoreError
from tailrace.formats import fastjson, filenames

__all__ = [
    "BATCH_CQ", "CLEANUP_POLICY", "COMPACTION", "QUEUE_TYPE", "check_queue_types", "queue_directories",
    "read_batch_topics", "read_compacted_topics", "read_topics", "whole_units",
]

QUEUE_TYPE = "queue.type"
"""Attribute of a topic."""
BATCH_CQ = "BatchCQ"
CLEANUP_POLICY = "cleanup.policy"
"""Attribute of a topic."""
COMPACTION = "COMPACTION"
"""The policy of a topic of which the last message of each key stays."""


def whole_units(file_size: int, unit: int) -> int:
    """Return ``file_size``, rounded up to a multiple of ``unit`` bytes."""
    return -(-file_size // unit) * unit


def queue_directories(file_system: FileSystem, directory: str) -> Iterator[tuple[str, int]]:
    """Yield topic and queue id of each queue that has a directory below this one."""
    for topic in file_system.list(directory) if directory else ():
        path = f"{directory}/{topic}"
        if not is_directory(file_system, path):
            continue
        for name in file_system.list(path):
            if filenames.is_number(name) and is_directory(file_system, f"{path}/{name}"):
                yield topic, int(name)


def read_batch_topics(file_system: FileSystem, root: str) -> frozenset[str]:
    """Return the topics that ``config/topics.json``, or its backup, says to have batch queues."""
    return frozenset(topic for topic, is_batch in _read_types(file_system, root).items() if is_batch)


def read_topics(file_system: FileSystem, root: str) -> frozenset[str]:
    """Return the topics of ``config/topics.json``, or of its backup."""
    return frozenset(_read_attributes(file_system, root, b""))


def _read_types(file_system: FileSystem, root: str) -> dict[str, bool]:
    """Return for each topic whether it has batch queues. Return {} quickly if no topic has."""
    sought = b"" if file_system.list(f"{root}/{filenames.BATCHCONSUMEQUEUE}") else BATCH_CQ.encode()
    return {topic: attributes.get(QUEUE_TYPE) == BATCH_CQ
            for topic, attributes in _read_attributes(file_system, root, sought).items()}


def read_compacted_topics(file_system: FileSystem, root: str) -> frozenset[str]:
    """Return the topics that ``config/topics.json``, or its backup, says to be compacted."""
    found = _read_attributes(file_system, root, COMPACTION.encode())
    return frozenset(topic for topic, attributes in found.items() if attributes.get(CLEANUP_POLICY) == COMPACTION)


def _read_attributes(file_system: FileSystem, root: str, sought: bytes) -> dict[str, dict[str, str]]:
    """Return the attributes of each topic; {} quickly if the file does not have the text ``sought``."""
    path = f"{root}/{filenames.CONFIG}/topics.json"
    for name in (path, f"{path}.bak"):
        text = read_if_there(file_system, name) or b""
        if not text.strip():
            continue
        if sought not in text:
            return {}
        try:
            table = fastjson.loads(text)["topicConfigTable"]
            return {str(topic): dict(config.get("attributes") or {}) for topic, config in table.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return {}


def check_queue_types(file_system: FileSystem, root: str) -> None:
    """Raise NotAStoreError if a topic has queues of another kind than its configuration says.

    A Java broker does not start on such a directory either. A topic without a configuration may have
    queues of either kind, but not of both.
    """
    batch = {topic for topic, _ in queue_directories(file_system, f"{root}/{filenames.BATCHCONSUMEQUEUE}")}
    types = _read_types(file_system, root)
    wrong = sorted(topic for topic in batch if types.get(topic) is False)
    if wrong:
        raise NotAStoreError(
            root,
            f"topic {wrong[0]} has queues in {filenames.BATCHCONSUMEQUEUE} and its {QUEUE_TYPE} is not {BATCH_CQ}")
    batch |= {topic for topic, is_batch in types.items() if is_batch}
    for topic in sorted(batch):
        path = f"{root}/{filenames.CONSUMEQUEUE}/{topic}"
        if any(file_system.list(f"{path}/{name}") for name in file_system.list(path)):
            raise NotAStoreError(
                root, f"topic {topic} is one of {QUEUE_TYPE}={BATCH_CQ} and has queues in {filenames.CONSUMEQUEUE}")
