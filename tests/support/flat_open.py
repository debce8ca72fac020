"""`MessageStore.open` for helpers of tests that pass keywords on."""

from __future__ import annotations

from dataclasses import fields

from tailrace import MessageStore
from tailrace.node.store_opening import StoreParts

_PARTS = frozenset(field.name for field in fields(StoreParts))


def flat_open(path, **options):
    """Open a store; the keywords that StoreParts has are passed in ``parts``."""
    parts = {name: value for name, value in options.items() if name in _PARTS}
    rest = {name: value for name, value in options.items() if name not in _PARTS}
    return MessageStore.open(path, parts=StoreParts(**parts), **rest)
