"""The time in the signature of a call: how far it may be from the clock of the server.

A signature of gRPC covers nothing but the header ``x-mq-date-time``. So whoever has recorded the two headers of one
call can make any other call with them, for as long as the server accepts their time.

Clients write this time without a zone. The Node.js client writes UTC; the Java and the Python client write the time of
their own zone, although the text ends with ``Z``. So a time is accepted if it is near in UTC, in the zone of the
server, or in a zone of ``grpcSignatureTimeZones``.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Final, final

from tailrace.env.clock import Clock

__all__ = ["SignatureDates"]

_FORMAT: Final = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")


@final
class SignatureDates:
    """Checks times of signatures. With a ``max_age_s`` of 0 every text is accepted, as by RocketMQ's proxy."""

    def __init__(self, clock: Clock, max_age_s: int, zones: Iterable[dt.tzinfo] = ()) -> None:
        self._clock = clock
        self._max_age_s = max_age_s
        self._zones: tuple[dt.tzinfo | None, ...] = (dt.UTC, None, *zones)
        """Without a zone, `datetime` takes that of this machine."""

    def refusal(self, text: str, at_ms: int | None = None) -> str:
        """Return why a signature of this time is not accepted, empty if it is.

        ``at_ms`` is the time at which the call began; without it that is now.
        """
        if not self._max_age_s:
            return ""
        now_ms = self._clock.now_ms() if at_ms is None else at_ms
        parts = [int(part) for found in [_FORMAT.fullmatch(text)] if found for part in found.groups()]
        apart_s = []
        try:
            year, month, day, hour, minute, second = parts
            for zone in self._zones:
                signed = dt.datetime(year, month, day, hour, minute, second, tzinfo=zone)
                apart_s.append(now_ms / 1000 - signed.timestamp())
                if abs(apart_s[-1]) <= self._max_age_s:
                    return ""
        except (ValueError, OverflowError, OSError):
            return f"x-mq-date-time is not a time such as 20261123T120000Z: {text[:40]!r}"
        return (
            f"the time of the signature, {text}, is {abs(apart_s[0]):.0f} s "
            f"{'behind' if apart_s[0] > 0 else 'ahead of'} the clock of the server in UTC, and grpcSignatureMaxAge is "
            f"{self._max_age_s} s; compare the clocks, or name the time zone of the client in grpcSignatureTimeZones")
