"""Request modes: whether a group gets messages of a topic by PULL or by POP (``messageRequestMode.json``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from tailrace.env.filesystem import FileSystem
from tailrace.errors import StoreError
from tailrace.formats import fastjson
from tailrace.node.config_manager import ConfigManager, Draft, Owned

__all__ = ["POP", "PULL", "MessageRequestModeManager"]

PULL: Final = "PULL"
POP: Final = "POP"
MODES_MAX: Final = 100_000


@final
class MessageRequestModeManager(ConfigManager[tuple[str, str], dict[str, Any]]):
    """Modes by topic and group, as requests set them. Every change is durable before it is visible."""

    owned = Owned.BY_DRAFT

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
        self, topic: str, group: str, mode: str, shared: int, is_there: Callable[[str, str], bool] = lambda *_: True
    ) -> Callable[[Draft[tuple[str, str], dict[str, Any]]], None]:
        """Return the change that sets how a group gets the messages of a topic. It raises StoreError for a full table.

        ``is_there`` returns True if a topic and a group both exist; modes of others are dropped to make room.
        """
        entry = {"consumerGroup": group, "mode": mode, "popShareQueueNum": shared, "topic": topic}

        def change(draft: Draft[tuple[str, str], dict[str, Any]]) -> None:
            known = draft.get((topic, group))
            if known is None and len(draft) >= MODES_MAX:
                for key in [key for key in self._table if not is_there(*key)]:
                    draft.remove(key)
            if known is None and len(draft) >= MODES_MAX:
                raise StoreError(f"{MODES_MAX} modes of groups are set, the limit; delete topics or groups")
            if known != entry:
                draft.put((topic, group), entry)

        return change

    def forget(self, gone: Callable[[str, str], bool], also: Callable[[], None]) -> None:
        """Forget the modes of topics and groups for which ``gone`` returns True. For ``also`` see `submit`."""
        self.change(lambda draft: [draft.remove(key) for key in draft.merged() if gone(*key)], also)

    def _decode(self, value: dict[str, Any]) -> None:
        self._table = {
            (topic, group): dict(entry)
            for topic, group, entry in fastjson.pairs_of(value.pop("messageRequestModeMap", None))
            if isinstance(entry, dict)}

    def _encode(self, table: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
        return {"messageRequestModeMap": fastjson.nested((*key, entry) for key, entry in table.items())}
