"""Requests of admin tools about settings: 25 and 26 of a broker, 318 and 319 of a name server."""

from __future__ import annotations

from typing import final

from tailrace.auth.accesses import CLUSTER, Access
from tailrace.auth.check import AccessControl
from tailrace.broker.core.settings import RunningSettings, properties_in
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, sender_of
from tailrace.formats.requests.broker_headers import GetBrokerConfigResponseHeader
from tailrace.formats.requests.table import Action
from tailrace.remoting import Channel, RemotingServer
from tailrace.requests.reply import Answer
from tailrace.requests.worker import RequestWorker

__all__ = ["SettingsProcessor"]


@final
class SettingsProcessor:
    """Shows and changes the settings of a broker, or of a name server.

    With ``control`` a user needs Delete on ``cluster`` to change settings that decide which messages are deleted.
    """

    def __init__(
        self, settings: RunningSettings, worker: RequestWorker, control: AccessControl | None = None, cluster: str = "",
    ) -> None:
        self._settings = settings
        self._control = control
        self._delete = Access(CLUSTER, cluster, Action.DELETE)
        self._update_later = worker.in_thread(self._update)

    def register(self, server: RemotingServer) -> None:
        """Register the requests of a broker."""
        server.register(self.show, RequestCode.GET_BROKER_CONFIG)
        server.register(self.update, RequestCode.UPDATE_BROKER_CONFIG)

    def register_name_server(self, server: RemotingServer) -> None:
        """Register the requests of a name server."""
        server.register(self.show_name_server, RequestCode.GET_NAMESRV_CONFIG)
        server.register(self.update, RequestCode.UPDATE_NAMESRV_CONFIG)

    def show(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the settings of a broker as a properties text, with their version: request 26."""
        version = fastjson.dumps(self._settings.version.to_json()).decode()
        return request.answer(
            ext=GetBrokerConfigResponseHeader(version), body=self._settings.text().encode())

    def show_name_server(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the settings of a name server as a properties text: request 319."""
        return request.answer(body=self._settings.text().encode())

    def update(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Change settings: requests 25 and 318. Either all named settings change or none."""
        if self._control is not None and self._settings.deleting & properties_in(request.body).keys():
            self._control.require(channel, request, self._delete)
        return self._update_later(channel, request)

    def _update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.answer(remark=self._settings.update(request.body, sender_of(request)) or None)
