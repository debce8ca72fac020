"""Items that other threads leave for the event loop come in order, many in one call, none twice."""

from __future__ import annotations

import asyncio
import threading

from tailrace.requests.executors import LoopMailbox


def test_items_of_a_thread_come_together_and_in_order():
    async def test():
        taken = []
        mailbox = LoopMailbox(asyncio.get_running_loop(), taken.append)
        thread = threading.Thread(target=lambda: [mailbox.put(number) for number in range(100)])
        thread.start()
        thread.join()
        assert taken == []
        await asyncio.sleep(0)
        assert taken == [list(range(100))]
        mailbox.put(100)
        await asyncio.sleep(0)
        assert taken[1:] == [[100]]

    asyncio.run(test())


def test_an_item_that_comes_while_others_are_taken_is_taken_next():
    async def test():
        taken = []

        def take(items):
            taken.extend(items)
            if items == ["first"]:
                mailbox.put("second")

        mailbox = LoopMailbox(asyncio.get_running_loop(), take)
        mailbox.put("first")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert taken == ["first", "second"]

    asyncio.run(test())


def test_after_the_loop_has_been_closed_nothing_happens():
    loop = asyncio.new_event_loop()
    loop.close()
    taken = []
    LoopMailbox(loop, taken.append).put("late")
    assert taken == []
