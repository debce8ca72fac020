"""Open a directory to read it, with notes on stderr about what is not as in a closed store."""

from __future__ import annotations

from pathlib import Path

from tailrace.cli.arguments import complain, note_unclean, read_properties
from tailrace.cli.contexts import tls_of
from tailrace.config import StoreConfig
from tailrace.node.synced_directory import Synced, open_synced
from tailrace.store.directory import DirectoryState

__all__ = ["open_to_read"]


def open_to_read(store: Path, config: Path | None, *, raw: bool = False, index: bool = False) -> Synced:
    """Open a directory; a server that has it open is asked to sync first. Raises StoreError or OSError."""
    settings = StoreConfig.from_properties(read_properties(config))
    found = open_synced(str(store), config=settings, raw=raw, index=index, tls=tls_of())
    note_unclean(is_unclean=found.directory.state is DirectoryState.UNCLEAN and not raw)
    if found.behind:  # messages of the last seconds may be missing
        complain(f"the store is shown {found.behind}")
    return found
