"""The pools of threads of a broker."""

from __future__ import annotations

import ast
import asyncio
import threading
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import RefusalError
from tailrace.formats.remoting import ResponseCode
from tailrace.requests.executors import BoundedExecutor, Executors

SOURCE = Path(tailrace.__file__).parent
AT_START_AND_STOP = {"cli/serve.py": 2, "remoting/tls_reload.py": 1}
"""What may use the default pool of the event loop, because no client waits for it: opening and closing the store,
reading certificates."""


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


def test_only_the_start_and_the_stop_use_the_default_pool():
    found = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "run_in_executor" not in text:
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
                 and isinstance(node.func, ast.Attribute) and node.func.attr == "run_in_executor"
                 and isinstance(node.args[0], ast.Constant)]
        if calls:
            found[str(path.relative_to(SOURCE))] = len(calls)
    assert found == AT_START_AND_STOP


def test_a_full_queue_refuses_and_others_are_not_affected():
    async def test():
        gate, full, other = threading.Event(), BoundedExecutor("full", 2, 3), BoundedExecutor("other", 1, 0)
        waiting = [full.run(gate.wait) for _ in range(5)]
        assert (full.running, full.waiting, full.refused) == (2, 3, 0)
        with pytest.raises(RefusalError, match="3 pieces of work wait for the threads full already") as refused:
            full.run(gate.wait)
        assert (refused.value.code, full.refused) == (ResponseCode.SYSTEM_BUSY, 1)
        assert await other.run(int, "7") == 7
        gate.set()
        await asyncio.gather(*waiting)
        assert (full.running, full.waiting) == (0, 0)
        assert await full.run(int, "8") == 8
        full.stop()
        other.stop()

    run(test)


def test_a_pool_without_a_queue_serves_one_after_the_other():
    async def test():
        one = Executors().worker("one")
        for number in range(200):
            assert await one.run(int, str(number)) == number
        assert one.refused == 0
        one.stop()

    run(test)


def test_the_names_of_pools_are_different():
    executors = Executors()
    executors.worker("requests")
    names = [executor.name for executor in executors]
    assert len(set(names)) == len(names) == 6
    executors.stop()
