"""A producer as a member of its group: heartbeats, so that brokers find its connection by group or client id."""

from __future__ import annotations

from tailrace.client.instance import InstanceShare, Member

__all__ = ["ProducerMember"]


class ProducerMember(Member):
    """Keeps the group known at the brokers of some topics. Subclasses serve requests of these brokers."""

    def __init__(self, share: InstanceShare, group: str) -> None:
        self.group = group
        self._share = share
        self._brokers: set[str] = set()
        self._topics: set[str] = set()

    async def close(self) -> None:
        """Leave the group."""
        if self._topics:  # even if no broker took the first heartbeat
            await self._share.instance.leave(self)

    async def join(self, topic: str, addresses: set[str]) -> None:
        """Make the group known at the brokers of a topic, and keep it known. Raises RemotingError."""
        self._topics.add(topic)
        if addresses - self._brokers:
            await self._share.instance.join(self, addresses)
            self._brokers |= addresses

    def topics(self) -> set[str]:
        """Return the topics joined so far."""
        return self._topics
