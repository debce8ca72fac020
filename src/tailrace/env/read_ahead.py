"""Read ahead: another thread makes the next items of an iterator while the caller uses the current one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["in_background", "read_ahead"]

_T = TypeVar("_T")


def read_ahead(items: Iterator[_T], depth: int = 1) -> Iterator[_T]:
    """Yield ``items``. Another thread makes up to ``depth`` of them before they are consumed.

    An error while an item is made is raised here. The thread ends when the generator ends or is closed.
    """
    ready: queue.Queue[tuple[list[_T], BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(made: list[_T], error: BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((made, error), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def make() -> None:
        try:
            for item in items:
                if not put([item], None):
                    return
            put([], None)
        except BaseException as error:  # noqa: BLE001 - raised in the consuming thread
            put([], error)

    thread = threading.Thread(target=make, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            made, error = ready.get()
            if error is not None:
                raise error
            if not made:
                return
            yield made[0]
    finally:
        stopped.set()
        thread.join()


def in_background(work: Callable[[], None]) -> Callable[[], None]:
    """Start ``work`` in another thread. Return a function that waits for it and raises its error."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            failed.append(error)

    thread = threading.Thread(target=run, name="background", daemon=True)
    thread.start()

    def wait() -> None:
        thread.join()
        if failed:
            raise failed[0]

    return wait
