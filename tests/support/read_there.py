"""Reads of topics that a crash may have left out: nothing is there, which is an error of MessageStore."""

from __future__ import annotations

from tailrace.errors import UnknownTopicError

__all__ = ["query_there", "read_there"]


def read_there(store, topic, *place, **more):
    """What ``read`` yields; nothing if the topic does not exist."""
    try:
        return store.read(topic, *place, **more)
    except UnknownTopicError:
        return iter(())


def query_there(store, topic, key):
    """What ``query_message`` returns; nothing if the topic does not exist."""
    try:
        return store.query_message(topic, key)
    except UnknownTopicError:
        return []
