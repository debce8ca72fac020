"""Long work of one request, split into parts so that the event loop serves other requests in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from tailrace.broker.answers_later import Answer, answer_failure
from tailrace.broker.waiting import memory_of
from tailrace.formats.remoting import RemotingCommand
from tailrace.remoting import Channel

__all__ = ["TURN_S", "in_turns"]

TURN_S: Final = 0.005
"""Seconds that a request may work in one turn of the event loop."""


def in_turns(
    loop: asyncio.AbstractEventLoop, channel: Channel, request: RemotingCommand, steps: Iterator[object],
    then: Callable[[], Answer],
) -> Answer:
    """Run all steps, then return the answer of ``then``; None if it is sent later.

    Work that is not done after `TURN_S` continues in the next turn, unless the connection has closed. An error
    of a step is raised in the first turn, and sent as the answer in later turns.
    """
    if _run_some(loop, steps):
        return then()
    size = memory_of(request)
    channel.hold(1, size)

    def go_on() -> None:
        try:
            if channel.closed or _run_some(loop, steps):
                channel.hold(-1, -size)
                if not channel.closed:
                    answer = then()
                    if isinstance(answer, RemotingCommand):
                        channel.answer(request, answer)
                return
        except Exception as error:  # noqa: BLE001 - the outermost step of a request that works on
            channel.hold(-1, -size)
            answer_failure(channel, request, error)
            return
        loop.call_soon(go_on)

    loop.call_soon(go_on)
    return None


def _run_some(loop: asyncio.AbstractEventLoop, steps: Iterator[object]) -> bool:
    """Run steps for `TURN_S`; return whether all are done."""
    until = loop.time() + TURN_S if loop.is_running() else float("inf")
    return all(loop.time() <= until for _ in steps)
