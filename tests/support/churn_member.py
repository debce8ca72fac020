"""A member of a group, as a program: ``churn_member.py NAMESRV ORDER LOG NUMBER``; ends with SIGTERM.

For each message it appends queue, offset and its number to a log that all members share, before the message counts as
consumed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tailrace import AsyncPushConsumer


async def main(namesrv, order, log, number):
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    async def listen(message):
        os.write(file, b"%d %d %s\n" % (message.queue_id, message.queue_offset, number.encode()))

    async with AsyncPushConsumer(
        "churn", listen, namesrv=namesrv, topics="churn", start="first", in_order=order == "in-order",
        timeout_ms=10_000,
    ):
        await ended.wait()


asyncio.run(main(*sys.argv[1:]))
