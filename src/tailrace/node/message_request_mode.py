"""How a group gets the messages of a topic, PULL or POP: ``messageRequestMode.json``."""

from __future__ import annotations

from typing import Any, Final, final

from tailrace.env.filesystem import FileSystem
from tailrace.node.config_manager import ConfigManager

__all__ = ["PULL", "MessageRequestModeManager"]

PULL: Final = "PULL"


@final
class MessageRequestModeManager(ConfigManager):
    """Modes by topic and group, as requests set them. Every change is durable when its call returns.

    A Java broker may have left groups in mode POP. Those entries are kept, so that a Java broker
    finds them again, but nothing here serves POP.
    """

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, "messageRequestMode.json")
        self._table: dict[str, dict[str, dict[str, Any]]] = {}

    def mode(self, topic: str, group: str) -> str:
        """The mode that was set, PULL if there is none."""
        return str(self._table.get(topic, {}).get(group, {}).get("mode") or PULL)

    def set_pull(self, topic: str, group: str) -> None:
        """Have a group pull a topic."""
        with self._lock:
            entry = {"consumerGroup": group, "mode": PULL, "popShareQueueNum": 0, "topic": topic}
            if self._table.get(topic, {}).get(group) == entry:
                return
            table = {**self._table, topic: {**self._table.get(topic, {}), group: entry}}
            before, self._table = self._table, table
            try:
                self.persist()
            except BaseException:
                self._table = before  # what is not durable is not set
                raise

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("messageRequestModeMap", None)
        self._table = {
            str(topic): {str(group): dict(entry) for group, entry in groups.items()
                         if isinstance(entry, dict)}
            for topic, groups in (found.items() if isinstance(found, dict) else ())
            if isinstance(groups, dict)
        }

    def _encode(self) -> dict[str, Any]:
        return {"messageRequestModeMap": self._table}
