"""Requests of RocketMQ 5.5.0 that belong to features which Tailrace does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ABSENT", "why_not_supported"]

_CONTROLLER: Final = "a controller"
_CONTAINER: Final = "a broker container"

ABSENT: Final[Mapping[int, tuple[str, str]]] = {
    902: ("ADD_BROKER", _CONTAINER),
    903: ("REMOVE_BROKER", _CONTAINER),
    905: ("NOTIFY_MIN_BROKER_ID_CHANGE", "slaves that act for their master"),
    1001: ("CONTROLLER_ALTER_SYNC_STATE_SET", _CONTROLLER),
    1002: ("CONTROLLER_ELECT_MASTER", _CONTROLLER),
    1003: ("CONTROLLER_REGISTER_BROKER", _CONTROLLER),
    1004: ("CONTROLLER_GET_REPLICA_INFO", _CONTROLLER),
    1005: ("CONTROLLER_GET_METADATA_INFO", _CONTROLLER),
    1006: ("CONTROLLER_GET_SYNC_STATE_DATA", _CONTROLLER),
    1008: ("NOTIFY_BROKER_ROLE_CHANGED", _CONTROLLER),
    1009: ("UPDATE_CONTROLLER_CONFIG", _CONTROLLER),
    1010: ("GET_CONTROLLER_CONFIG", _CONTROLLER),
    1011: ("CLEAN_BROKER_DATA", _CONTROLLER),
    1012: ("CONTROLLER_GET_NEXT_BROKER_ID", _CONTROLLER),
    1013: ("CONTROLLER_APPLY_BROKER_ID", _CONTROLLER),
}
"""Name of the request, and the feature that it needs, by code."""
_UNUSED: Final[Mapping[int, str]] = {
    200_072: ": ACK_LITE_MESSAGE has no processor in any broker; acknowledge with ACK_MESSAGE (200051) and liteTopic",
}
"""Requests that RocketMQ names and does not serve, with what to send instead."""


def why_not_supported(code: int) -> str:
    """Return the remark that refuses a request of a code without a processor."""
    remark = f" request type {code} not supported"
    name, feature = ABSENT.get(code, ("", ""))
    if not name:
        return remark + _UNUSED.get(code, "")
    return f"{remark}: {name} needs {feature}, which this server does not have"
