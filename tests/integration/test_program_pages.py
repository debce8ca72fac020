"""Pages about programs: code that the tests of documents do not run."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace import Message, Producer
from tailrace.errors import RemotingCommandError
from tailrace.response_codes import _meaning

if TYPE_CHECKING:
    from tailrace.pytest_plugin import TailraceBroker

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "programs"
pytestmark = [pytest.mark.slow, pytest.mark.integration]


def test_the_example_of_transactions_stores_an_order_and_its_message(
    tmp_path: Path, tailrace_broker: TailraceBroker, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, = re.findall(r"```python\n(.*?)```", (PAGES / "transactions.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code.replace("127.0.0.1:9876", tailrace_broker.namesrv), "transactions.md", "exec"), names)
    assert capfd.readouterr().out == "committed True\n"
    message, = tailrace_broker.client().wait_for("orders", 1)
    assert message.keys == ["42"]
    # The answer to a check comes from the database alone.
    check = names["check"]
    assert callable(check)
    assert check(message) is True
    with sqlite3.connect("orders.db") as database:
        database.execute("DELETE FROM orders")
    assert check(message) is False


def test_codes_of_refused_sends_are_explained(tailrace_session_broker: TailraceBroker) -> None:
    with Producer(namesrv=tailrace_session_broker.namesrv, retries=0) as producer:
        for message, code in (
            (Message(topic="explained", body=b"x" * (4 << 20)), 0),
            (Message(topic="explained", body=b"x" * (4 << 20 | 1)), 13),
            (Message(topic="ex.plained", body=b"x"), 29), (Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x"), 16),
        ):
            answer = 0
            try:
                producer.send(message)
            except RemotingCommandError as error:
                answer = error.code
                meaning = _meaning(error.code, error.remark)
                assert meaning is not None
                assert str(error).startswith(f"{meaning.says}; {meaning.do} (code {code} ")
            assert answer == code
        assert len(producer.queues("explained")) == 4
