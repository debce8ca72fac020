"""How a group gets the messages of a topic, PULL or POP: ``messageRequestMode.json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from tailrace.env.filesystem import FileSystem
from tailrace.node.config_manager import ConfigManager, Draft

__all__ = ["POP", "PULL", "MessageRequestModeManager"]

PULL: Final = "PULL"
POP: Final = "POP"


@final
class MessageRequestModeManager(ConfigManager[tuple[str, str], dict[str, Any]]):
    """Modes by topic and group, as requests set them. Every change is durable before it shows."""

    def __init__(self, file_system: FileSystem, config_dir: str) -> None:
        super().__init__(file_system, config_dir, "messageRequestMode.json")

    def mode(self, topic: str, group: str) -> tuple[str, int] | None:
        """Return the mode that was set and the number of following members whose queues are shared; or None."""
        entry = self._table.get((topic, group))
        if entry is None:
            return None
        shared = entry.get("popShareQueueNum")
        return str(entry.get("mode") or PULL), shared if isinstance(shared, int) else 0

    def setting(
        self, topic: str, group: str, mode: str, shared: int
    ) -> Callable[[Draft[tuple[str, str], dict[str, Any]]], None]:
        """The change that sets how a group gets the messages of a topic."""
        entry = {"consumerGroup": group, "mode": mode, "popShareQueueNum": shared, "topic": topic}

        def change(draft: Draft[tuple[str, str], dict[str, Any]]) -> None:
            if draft.get((topic, group)) != entry:
                draft.put((topic, group), entry)

        return change

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
