"""Notes to the service manager that started the process (systemd's sd_notify protocol)."""

from __future__ import annotations

import os
import socket

from tailrace import events
from tailrace.logs import get_logger

__all__ = ["notify_supervisor"]

_log = get_logger(__name__)
EXTEND_S = 60


def notify_supervisor(state: str, status: str = "") -> bool:
    """Send a state such as ``READY=1`` and a text for people to ``$NOTIFY_SOCKET``; return whether it was sent.

    Without that variable nothing happens. A state of ``EXTEND`` keeps a slow start from being ended: the manager waits
    60 s more.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    lines = [f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}" if state == "EXTEND" else state]
    if status:
        lines.append("STATUS=" + status.replace("\n", " "))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send("\n".join(lines).encode())
    except OSError as error:
        events.THE_SERVICE_MANAGER_WAS_NOT_NOTIFIED.log(_log, socket=address, cause=error)
        return False
    return True
