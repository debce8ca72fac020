"""Requests that a slave refuses, with the answers of a Java slave: it takes no message and changes no topic."""

from __future__ import annotations

from typing import Final, final

from tailrace.errors import RefusalError
from tailrace.formats.remoting import RemotingCommand, ResponseCode
from tailrace.formats.remoting import RequestCode as Code
from tailrace.ha.slave import Slave
from tailrace.remoting import Channel, RemotingServer

__all__ = ["SlaveRefusals", "refuse_on_slave"]

_REJECTED: Final = "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave"
_SENDS: Final = (
    Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.CONSUMER_SEND_MSG_BACK,
    Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2, Code.RECALL_MESSAGE,
    # They write checkpoints, or acknowledgements, to the log.
    Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE, Code.CHANGE_MESSAGE_INVISIBLETIME)
_PULLS: Final = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.PEEK_MESSAGE, Code.NOTIFICATION)
_CHANGES: Final = (
    Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.DELETE_TOPIC_IN_BROKER,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.DELETE_SUBSCRIPTIONGROUP, Code.SET_MESSAGE_REQUEST_MODE,
    Code.PURGE_TOPIC)
_CHANGE: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker.")


def refuse_on_slave(slave: Slave | None) -> None:
    """Raise RefusalError if the broker is a slave, which can write no checkpoint of a pop."""
    if slave is not None:
        raise RefusalError(ResponseCode.SYSTEM_BUSY, _REJECTED)


@final
class SlaveRefusals:
    """Replaces the processors of these requests. ``reads`` (slaveReadEnable): pulls are served."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads

    def register(self, server: RemotingServer) -> None:
        """Refuse these requests at a server, on which the processors of a master are registered."""
        server.register(self.reject, *_SENDS, *(() if self._reads else _PULLS))
        server.register(self.change, *_CHANGES)
        server.register(self.reset, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.CLONE_GROUP_OFFSET)

    def reject(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse a send, or a pull without slaveReadEnable; clients then use the master."""
        raise RefusalError(ResponseCode.SYSTEM_BUSY, _REJECTED)

    def change(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse a change that the copy from the master would undo."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, _CHANGE)

    def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse to set offsets of a group."""
        raise RefusalError(ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")
