"""Reading ahead: an iterator's next items are made in another thread while one is worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["in_background", "read_ahead"]

_T = TypeVar("_T")


def read_ahead(items: Iterator[_T], depth: int = 1) -> Iterator[_T]:
    """``items``, at most ``depth`` of them made before they are asked for.

    What making one raises is raised here. Ends its thread also when it is not read to the end.
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
        except BaseException as error:  # noqa: BLE001 - handed over to who asked
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
    """Start ``work`` in another thread; the returned call waits for it and raises what it raised."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed over to who waits
            failed.append(error)

    thread = threading.Thread(target=run, name="background", daemon=True)
    thread.start()

    def wait() -> None:
        thread.join()
        if failed:
            raise failed[0]

    return wait
