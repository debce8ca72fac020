"""How a group gets the messages of a topic, PULL or POP: ``messageRequestMode.json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from tailrace.env.filesystem import FileSystem
from tailrace.node.config_manager import ConfigManager, Draft

__all__ = ["PULL", "MessageRequestModeManager"]

PULL: Final = "PULL"


@final
class MessageRequestModeManager(ConfigManager[tuple[str, str], dict[str, Any]]):
    """Modes by topic and group, as requests set them. Every change is durable before it shows.

    A Java broker may have left groups in mode POP. Those entries are kept, so that a Java broker
    finds them again, but nothing here serves POP.
    """

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, "messageRequestMode.json")

    def mode(self, topic: str, group: str) -> str:
        """The mode that was set, PULL if there is none."""
        return str(self._table.get((topic, group), {}).get("mode") or PULL)

    def pulling(self, topic: str, group: str) -> Callable[[Draft[tuple[str, str], dict[str, Any]]], None]:
        """The change that has a group pull a topic."""
        entry = {"consumerGroup": group, "mode": PULL, "popShareQueueNum": 0, "topic": topic}

        def pull(draft: Draft[tuple[str, str], dict[str, Any]]) -> None:
            if draft.get((topic, group)) != entry:
                draft.put((topic, group), entry)

        return pull

    def _decode(self, value: dict[str, Any]) -> None:
        found = value.pop("messageRequestModeMap", None)
        self._table = {
            (str(topic), str(group)): dict(entry)
            for topic, groups in (found.items() if isinstance(found, dict) else ())
            if isinstance(groups, dict)
            for group, entry in groups.items() if isinstance(entry, dict)
        }

    def _encode(self, table: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for (topic, group), entry in table.items():
            found.setdefault(topic, {})[group] = entry
        return {"messageRequestModeMap": found}
