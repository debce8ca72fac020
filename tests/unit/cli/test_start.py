"""Which modules a command loads: its start must not wait for modules that it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "numpy", "pyspark", "pyarrow", "pandas", "asyncio", "tailrace.node.message_store", "tailrace.broker",
    "tailrace.filters", "tailrace.namesrv", "tailrace.observe", "tailrace.requests")


@pytest.mark.parametrize(("code", "heavy"), [
    ("import tailrace; tailrace.StoreError", (*HEAVY, "tailrace.config", "dataclasses")),
    ("from tailrace import Message, StoreConfig", HEAVY),
    ("import tailrace.cli.app", (*HEAVY, "orjson")),
    ("import tailrace.cli.app, tailrace.cli.messages", HEAVY),
    ("import tailrace.cli.messages, tailrace.client", [h for h in HEAVY if h != "asyncio"]),
])
def test_what_is_not_used_is_not_loaded(code, heavy):
    loaded = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True,
        text=True, timeout=60, check=True).stdout.split()
    assert not set(heavy) & set(loaded)


def test_every_public_name_is_found_and_no_other():
    import tailrace

    assert all(getattr(tailrace, name) is not None for name in tailrace.__all__)
    assert set(tailrace.__all__) <= set(dir(tailrace))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tailrace.nonsense
