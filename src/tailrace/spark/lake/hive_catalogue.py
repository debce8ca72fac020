"""PyIceberg's catalogue of a Hive metastore, whose requests end: PyIceberg itself waits for an answer for ever."""

from __future__ import annotations

from typing import Any, final

from pyiceberg.catalog.hive import HiveCatalog
from thrift.transport.TSocket import TSocket

from tailrace.spark.lake import client_times as times

__all__ = ["TimedHiveCatalog"]


@final
class TimedHiveCatalog(HiveCatalog):
    """A catalogue whose requests raise ``TTransportException`` if the metastore is silent."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        client = self._client
        make = client._init_thrift_transport

        def timed() -> Any:
            made = make()
            for one in vars(made).values():  # with Kerberos and without it, the transport has a socket
                if isinstance(one, TSocket):
                    one.setTimeout(times.ANSWER_S * 1000)
            return made

        client._init_thrift_transport = timed
        client._transport = timed()
