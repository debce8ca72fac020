"""The key-value table of the name server, in the file ``tailrace-kvConfig.json``.

Clients and admin tools set values by namespace and key (requests 100 to 102). The whole file is written with
every change, so the table has a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats import fastjson
from tailrace.node.config_manager import ConfigManager, Draft, Owned

__all__ = ["ORDER_TOPIC_CONFIG", "KVConfigManager"]

KV_MAX: Final = 4 << 20
"""Largest size of the table, in characters."""
KV_ENTRY: Final = 32
"""Characters that an entry counts in addition to its namespace, key and value."""
KvDraft = Draft[tuple[str, str], str]
KvEdit = Callable[[KvDraft], object]
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"


class KVConfigManager(ConfigManager[tuple[str, str], str]):
    """Values by namespace and key. A change is durable and visible when its call returns."""

    owned = Owned.BY_DRAFT

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, "tailrace-kvConfig.json")
        self._size = 0

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value; None if it is not set."""
        return self._table.get((namespace, key))

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None if it has no value."""
        found = {k: v for (ns, k), v in list(self._table.items()) if ns == namespace}
        return found or None

    def setting(self, namespace: str, key: str, value: str) -> KvEdit:
        """Return the change that sets a value; it raises StoreError if the table would be larger than `KV_MAX`."""

        def put(draft: KvDraft) -> None:
            place = namespace, key
            before = draft.get(place)
            size = _kv_size(place, value) - (0 if before is None else _kv_size(place, before))
            if self._size + self._grown(draft) + size > KV_MAX:
                raise StoreError(f"the key-value table would have more than {KV_MAX} characters")
            draft.put(place, value)

        return put

    def deletion(self, namespace: str, key: str) -> KvEdit:
        """Return the change that removes a value."""
        return lambda draft: draft.remove((namespace, key))

    def _grown(self, draft: KvDraft) -> int:
        """Return how many characters larger the table is after the changes of a draft; may be negative."""
        grown = 0
        for place, value in draft.puts.items():
            before = self._table.get(place)
            grown += _kv_size(place, value) - (0 if before is None else _kv_size(place, before))
        for place in draft.gone:
            if (before := self._table.get(place)) is not None:
                grown -= _kv_size(place, before)
        return grown

    def _publish(self, draft: KvDraft) -> None:
        self._size += self._grown(draft)
        super()._publish(draft)

    def _decode(self, value: dict[str, Any]) -> None:
        self._table = {(ns, k): str(v) for ns, k, v in fastjson.pairs_of(value.pop("configTable", None))}
        self._size = sum(_kv_size(*entry) for entry in self._table.items())

    def _encode(self, table: dict[tuple[str, str], str]) -> dict[str, Any]:
        return {"configTable": fastjson.nested((*place, value) for place, value in table.items())}


def _kv_size(place: tuple[str, str], value: str) -> int:
    return KV_ENTRY + len(place[0]) + len(place[1]) + len(value)
