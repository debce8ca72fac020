"""Coroutines that run at the same time, most of them without a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailrace.proxy.together import together


def test_results_come_in_order_and_ends_without_a_wait_take_no_task() -> None:
    async def run() -> None:
        gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        tasks = []

        async def quick(what: str) -> str:
            return what

        async def slow(what: str) -> str:
            tasks.append(len(asyncio.all_tasks()))
            found = await gate
            tasks.append(len(asyncio.all_tasks()))
            await asyncio.sleep(0)
            return found + what

        async def later() -> None:
            gate.set_result("after ")

        assert await together(quick(what) for what in "abc") == ["a", "b", "c"]
        opener = asyncio.ensure_future(later())
        assert await together([quick("a"), slow("b"), quick("c"), slow("d")]) == ["a", "after b", "c", "after d"]
        assert tasks[0] == 2, "the test, and the one that opens the gate"
        assert tasks[2] >= 3
        await opener

    asyncio.run(run())


def test_no_coroutines_give_no_results() -> None:
    assert asyncio.run(together([])) == []


def test_the_first_failure_is_raised_and_the_others_go_on() -> None:
    async def run() -> list[str]:
        done: list[str] = []

        async def work(name: str, *, fails: bool, waits: bool) -> None:
            if waits:
                await asyncio.sleep(0.01)
            if fails:
                raise ValueError(name)
            done.append(name)

        with pytest.raises(ValueError, match="b"):
            await together([
                work("a", fails=False, waits=True), work("b", fails=True, waits=False),
                work("c", fails=True, waits=True), work("d", fails=False, waits=False)])
        await asyncio.sleep(0.05)
        with pytest.raises(ValueError, match="e"):
            await together([work("e", fails=True, waits=True), work("f", fails=False, waits=False)])
        return done

    assert asyncio.run(run()) == ["d", "a", "f"]


@asynccontextmanager
async def _noted(notes: list[str]) -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        notes.append(type(error).__name__)
        raise


@pytest.mark.parametrize(("turns", "error"), [(1, "GeneratorExit"), (2, "CancelledError")])
def test_a_cancelled_caller_cancels_what_waits(turns: int, error: str) -> None:
    async def run() -> list[str]:
        notes: list[str] = []

        async def work() -> None:
            async with _noted(notes):
                await asyncio.get_running_loop().create_future()

        task = asyncio.ensure_future(together([work(), work()]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return notes

    assert asyncio.run(run()) == [error, error]


def test_an_error_of_what_is_waited_for_can_be_handled() -> None:
    async def run() -> list[str]:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            try:
                await gate
            except OSError as error:
                return f"handled {error}"
            return ""

        asyncio.get_running_loop().call_soon(gate.set_exception, OSError("gone"))
        return await together([work(), work()])

    assert asyncio.run(run()) == ["handled gone", "handled gone"]
