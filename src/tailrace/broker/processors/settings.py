"""Requests of admin tools about settings: 25 and 26 of a broker, 318 and 319 of a name server."""

from __future__ import annotations

from typing import final

from tailrace.broker.answers_later import RequestWorker
from tailrace.broker.settings import RunningSettings
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.formats.requests.broker_headers import GetBrokerConfigResponseHeader
from tailrace.remoting import Channel, RemotingServer

__all__ = ["SettingsProcessor"]


@final
class SettingsProcessor:
    """Shows and changes the settings of a broker, or of a name server."""

    def __init__(self, settings: RunningSettings, worker: RequestWorker) -> None:
        self._settings = settings
        self._worker = worker

    def register(self, server: RemotingServer) -> None:
        """Register the requests of a broker."""
        server.register(self.show, RequestCode.GET_BROKER_CONFIG)
        server.register(self._worker.in_thread(self.update), RequestCode.UPDATE_BROKER_CONFIG)

    def register_name_server(self, server: RemotingServer) -> None:
        """Register the requests of a name server."""
        server.register(self.show_name_server, RequestCode.GET_NAMESRV_CONFIG)
        server.register(self._worker.in_thread(self.update), RequestCode.UPDATE_NAMESRV_CONFIG)

    def show(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the settings of a broker as a properties text, with their version: request 26."""
        version = fastjson.dumps(self._settings.version.to_json()).decode()
        return request.answer(
            ext=GetBrokerConfigResponseHeader(version).to_ext(), body=self._settings.text().encode())

    def show_name_server(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the settings of a name server as a properties text: request 319."""
        return request.answer(body=self._settings.text().encode())

    def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Change settings: requests 25 and 318. Either all named settings change or none."""
        return request.answer(remark=self._settings.update(request.body) or None)
