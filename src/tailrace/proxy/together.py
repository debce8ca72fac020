"""Run coroutines at the same time, without a task for those that need not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar, cast, final

__all__ = ["together"]

T = TypeVar("T")


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines in their order, as `asyncio.gather` does.

    Each is first run here until it waits for something. One that ends before costs no task and no turn of the event
    loop. Before they wait, coroutines may not ask for the current task. If some of them fail, the others continue, and
    the first failure is raised. A caller that is cancelled in the turn of the loop in which it has begun to wait closes
    the coroutines; later it cancels them.
    """
    found: list[asyncio.Future[T] | T] = []
    waiting: list[asyncio.Task[T]] = []
    failure: BaseException | None = None
    for coroutine in coroutines:
        try:
            waits_for = coroutine.send(None)
        except StopIteration as end:
            found.append(end.value)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = failure or error
        else:
            if waits_for is not None:
                waits_for._asyncio_future_blocking = False  # its __await__ has set it: another one may also await it
            task = asyncio.ensure_future(_Rest(coroutine, waits_for))
            waiting.append(task)
            found.append(task)
    if failure is not None:
        for task in waiting:
            task.add_done_callback(_forget)
        raise failure
    if not waiting:
        return found  # type: ignore[return-value] # there is no future among them
    await asyncio.gather(*waiting)
    return [one.result() if isinstance(one, asyncio.Future) else one for one in found]


def _forget(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()  # or asyncio logs it as never retrieved


@final
class _Rest(Generic[T]):
    """The rest of a coroutine that has begun, and waits for the awaitable that it has yielded."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, waits_for = self._coroutine, self._waits_for
        if waits_for is not None:
            waits_for._asyncio_future_blocking = True  # a task expects it
        while True:
            try:
                try:
                    value = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:  # noqa: BLE001 - of the task: it belongs to the coroutine
                    waits_for = coroutine.throw(error)
                else:
                    waits_for = coroutine.send(value)
            except StopIteration as end:
                return cast("T", end.value)
