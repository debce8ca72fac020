"""Pulls: requests 11 and 361 (PullMessageProcessor)."""

from __future__ import annotations

from functools import partial
from typing import final

from tailrace.broker.messages.pull_answers import answer_of
from tailrace.broker.messages.pull_service import PullService
from tailrace.broker.messages.pulls import Pulled
from tailrace.broker.statistics.traffic import Traffic
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.message_headers import PullMessageRequestHeader
from tailrace.remoting import Channel
from tailrace.requests.caller import RemotingCaller
from tailrace.requests.config_changes import ConfigChanges, MissingConfigError, NotPreparedError
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer

__all__ = ["PullMessageProcessor"]


@final
class PullMessageProcessor(RequestProcessor):
    """The remoting edge of `PullService`: reads the headers of pulls, and encodes the answers."""

    def __init__(self, service: PullService, changes: ConfigChanges, traffic: Traffic) -> None:
        self.service = service
        self._changes = changes
        self._counted = traffic.pulls

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return messages, or hold the pull until one arrives."""
        self._counted["ordinary"] += 1
        header, caller = request.read(PullMessageRequestHeader), RemotingCaller(channel, request, _answer_of)
        try:
            pulled = self.service.pull(header, caller)
        except (MissingConfigError, NotPreparedError) as missing:
            pulled = self._changes.provide(caller, missing, partial(self.service.pull, header, caller))
        return None if pulled is None else answer_of(request, pulled)


def _answer_of(_: Channel, request: RemotingCommand, pulled: Pulled) -> Answer:
    """Return the answer that a caller's reply sends."""
    return answer_of(request, pulled)
