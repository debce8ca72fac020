"""Request 315: statistics of topics, groups and the broker."""

from __future__ import annotations

from typing import final

from tailrace.broker.statistics.broker_stats import BrokerStatsManager, StatsData, StatsSnapshot
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.broker_headers import ViewBrokerStatsDataRequestHeader
from tailrace.remoting import Channel, RemotingServer

__all__ = ["StatsProcessor"]


@final
class StatsProcessor:
    """Returns a statistic by its name and key (AdminBrokerProcessor.viewBrokerStatsData)."""

    def __init__(self, stats: BrokerStatsManager) -> None:
        self._stats = stats

    def register(self, server: RemotingServer) -> None:
        """Register the requests that this processor serves."""
        server.register(self.view, RequestCode.VIEW_BROKER_STATS_DATA)

    def view(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return sum, rate and mean of a statistic in the last minute, hour and day: request 315."""
        header = request.read(ViewBrokerStatsDataRequestHeader)
        name, key = header.stats_name, header.stats_key
        found = self._stats.view(name, key)
        if found is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        return request.answer(body=fastjson.dumps(_body(found)))


def _body(data: StatsData) -> dict[str, object]:
    return {
        "statsDay": _item(data.day), "statsHour": _item(data.hour), "statsMinute": _item(data.minute),
    }


def _item(snapshot: StatsSnapshot) -> dict[str, float]:
    return {"avgpt": snapshot.avgpt, "sum": snapshot.sum, "tps": snapshot.tps}
