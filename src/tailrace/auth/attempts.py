"""Slows down clients that try user names, passwords or signatures.

After `most` failures of an address in a minute, attempts from there are refused for 1 s without a look at their proof.
Each later failure doubles that time, up to 60 s. Other addresses of a user are never refused. Users that share an
address with such a client, for example that of a gateway, are protected in two ways. A connection that has proven its
user is never refused. A user that had a valid proof from the address before is not refused for the failures of others,
only for failures with its own name. An IPv6 address stands for its network of 64 bits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from tailrace.auth.addresses import network_of
from tailrace.env.clock import Clock

__all__ = ["Attempts"]

ADDRESSES_MAX: Final = 10_000
"""Addresses with failures that are remembered. The one whose last failure is the oldest is forgotten."""
PAIRS_MAX: Final = 10_000
"""Users with an address from which they had a valid proof. The one whose last proof is the oldest is forgotten."""
SECOND_NS: Final = 1_000_000_000
MINUTE_NS: Final = 60 * SECOND_NS
WAIT_MAX_NS: Final = 60 * SECOND_NS
QUIET_NS: Final = 10 * MINUTE_NS
"""After this time without a failure the next one is counted as the first one."""


class _Failures:
    """Failures of an address, or of a user from an address."""

    __slots__ = ("count", "last_ns", "since_ns", "until_ns", "wait_ns")

    def __init__(self) -> None:
        self.count = self.since_ns = self.last_ns = self.until_ns = self.wait_ns = 0

    def add(self, now: int, most: int) -> None:
        """Count a failure; refuse further attempts if there were too many."""
        if now - self.last_ns >= QUIET_NS:
            self.count = self.wait_ns = 0
        self.last_ns = now
        if self.wait_ns:
            if now < self.until_ns:
                return
            self.wait_ns = min(2 * self.wait_ns, WAIT_MAX_NS)
        else:
            if not self.count or now - self.since_ns >= MINUTE_NS:
                self.count, self.since_ns = 0, now
            self.count += 1
            if self.count < most:
                return
            self.wait_ns = SECOND_NS
        self.until_ns = now + self.wait_ns


@final
class Attempts:
    """Failures by address. With ``most`` 0 nothing is refused. Used in one thread."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock = clock
        self._most = most
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._pairs: OrderedDict[tuple[str, str], _Failures] = OrderedDict()
        """Users that had a valid proof from an address, with the failures since then."""
        self.refusing_until_ns = 0
        """Until then attempts from some address are refused; 0 if from none."""

    def refuses(self, address: str, name: str) -> bool:
        """Return whether an attempt must be refused. Call it if `refusing_until_ns` is not 0."""
        now = self._clock.monotonic_ns()
        if now >= self.refusing_until_ns:
            self.refusing_until_ns = 0
            return False
        place = network_of(address)
        failures = self._pairs.get((place, name)) or self._addresses.get(place)
        return failures is not None and now < failures.until_ns

    def failed(self, address: str, name: str) -> bool:
        """Count a failure with a name, which may be any text. Return whether attempts are refused from now on."""
        if not self._most:
            return False
        now, place = self._clock.monotonic_ns(), network_of(address)
        at = self._addresses.get(place)
        if at is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses.popitem(last=False)
            at = self._addresses[place] = _Failures()
        self._addresses.move_to_end(place)
        refused = False
        for failures in (at, self._pairs.get((place, name))):
            if failures is not None:
                failures.add(now, self._most)
                refused = refused or now < failures.until_ns
                self.refusing_until_ns = max(self.refusing_until_ns, failures.until_ns)
        return refused

    def proved(self, address: str, name: str) -> None:
        """Remember that a user had a valid proof from an address.

        Failures with its name there stay: the proof may be a recorded request.
        """
        if not self._most:
            return
        key = network_of(address), name
        if key not in self._pairs:
            if len(self._pairs) >= PAIRS_MAX:
                self._pairs.popitem(last=False)
            self._pairs[key] = _Failures()
        self._pairs.move_to_end(key)
