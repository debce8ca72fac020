"""Gaps in the log of a master: damage that recovery has stepped over and that no placeholder covers.

After a power loss under ASYNC_FLUSH a page in the middle of the log may be missing. Recovery of a master steps over it
and keeps what follows; the gap may be a record with a damaged body. A slave gets the same bytes, and its dispatch stops
there, because a slave never decides what its log should be. So a master says at its start where its slaves will stop.
"""

from __future__ import annotations

from tailrace.kernels.shared import constants as C
from tailrace.store.default_message_store import DefaultMessageStore
from tailrace.store.walk.scan import LogEnd, checks_of, scan_files

__all__ = ["SEAL", "log_gaps"]

SEAL = ("stop the master and run `tailrace repair STORE --seal-damage` there; then `tailrace repair STORE "
        "--follow-master` on each slave that has stopped")
"""What to do about a gap."""


def log_gaps(store: DefaultMessageStore) -> list[int]:
    """Return the position of the first gap of each segment that has one, in their order.

    Only segments are read of which the manifest of the quarantine names damage; call it in a thread. Raises OSError.
    """
    log, found = store.commit_log.queue, []
    files = {file.file_from_offset: file for at in store.stepped_over() if (file := log.find(at)) is not None}
    for start, file in sorted(files.items()):
        until = min(start + file.size, log.max_offset)
        end = LogEnd(start)
        for _ in scan_files([file], start, until, checks_of(store.config), end):
            pass
        if end.phy_offset < until and end.reason != C.REASON_END:
            found.append(end.phy_offset)
    return found
