"""``send --lines`` says how far it came, and ``tail`` begins at the place that its options name."""

from __future__ import annotations

import io
import json
import signal
import sys

import pytest

from tailrace.cli import main, message_commands
from tailrace.cli.contexts import Target
from tailrace.cli.messages import Start, tail_messages
from tailrace.cli.signals import Stopped
from tailrace.errors import StoreError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command here; its exit code, what it printed, and its complaint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tailrace.cli.stop_at_signals", lambda: None)
    kept = signal.getsignal(signal.SIGINT)

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["tailrace", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    yield run
    signal.signal(signal.SIGINT, kept)


def bodies(store):
    with MessageStore.open(store, read_only=True) as opened:
        return [message.body.decode() for message in opened.read("t", 0, 0)]


@pytest.fixture
def lines(tmp_path):
    """A file of six lines, of which the fourth is too long for a message."""
    path = tmp_path / "lines"
    path.write_text("1\n2\r\n3\n" + "x" * 5_000_000 + "\n5\n6")
    return path


def test_a_line_that_is_refused_is_named_and_a_second_run_continues_there(run, lines):
    code, out, err = run("send", "s", "--topic", "t", "--file", lines, "--lines", "--create", "--queue", "0")
    assert code == 1
    assert [json.loads(line)["queueOffset"] for line in out.splitlines()] == [0, 1, 2]
    assert err.startswith("tailrace: stored 3 of 6 lines, stopped at line 4; --skip 3 continues there\n")
    lines.write_text(lines.read_text().replace("x" * 5_000_000, "4"))
    assert run("send", "s", "--topic", "t", "--file", lines, "--lines", "--skip", "3", "--queue", "0")[0] == 0
    assert bodies("s") == ["1", "2", "3", "4", "5", "6"]


def test_a_line_whose_answer_did_not_arrive_may_be_stored(run, lines, monkeypatch):
    def send(messages, target, queue, *, create):
        for number, _ in enumerate(messages, 1):
            if number == 3:
                raise Stopped(signal.SIGINT)
            yield {"status": "SEND_OK"}

    monkeypatch.setattr("tailrace.cli.messages.send_messages", send)
    code, _, err = run("send", "s", "--topic", "t", "--file", lines, "--lines")
    assert (code, err) == (
        130, "tailrace: stored 2 of 6 lines, stopped; line 3 may be stored as well; --skip 2 continues there\n")
    code, _, err = run("send", "s", "-", "--topic", "t", "--lines", "--skip", "1", stdin=b"a\nb\nc\nd\n")
    assert err == "tailrace: stored 2 lines, stopped; line 4 may be stored as well; --skip 3 continues there\n"


def test_a_command_that_sent_no_line_says_only_why(run, lines):
    code, out, err = run("send", "gone", "--topic", "t", "--file", lines, "--lines")
    assert (code, out) == (1, "")
    assert "stored" not in err
    code, out, err = run("send", "s", "-", "--topic", "t", "--lines", "--skip", "5", "--create", stdin=b"a\nb\n")
    assert (code, out, err) == (1, "", "tailrace: --skip 5 is more than the 2 lines that were read: nothing was sent\n")
    assert run("send", "s", "-", "--topic", "t", "--lines", "--skip", "2", stdin=b"a\nb\n")[0] == 0
    assert run("send", "s", "x", "--topic", "t", "--skip", "2")[0] == 2


def test_a_terminal_shows_the_share_and_the_number(run, lines, monkeypatch):
    shares = []
    monkeypatch.setattr(message_commands, "wants_table", lambda **_: True)
    monkeypatch.setattr(
        message_commands.Progress, "__call__", lambda self, done: shares.append(round(done, 3)))
    lines.write_text("12345\n" * 4)
    assert run("send", "s", "--topic", "t", "--file", lines, "--lines", "--create") == (0, "stored 4 lines in t\n", "")
    assert shares == [0.25, 0.5, 0.75, 1.0]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A topic with 3 messages in each of two queues, stored in turn."""
    path = tmp_path_factory.mktemp("tail") / "store"
    times = []
    with MessageStore.open(path) as opened:
        for number in range(6):
            at = opened.put(Message(topic="t", body=b"%d" % number, tags="ab"[number % 2]), queue_id=number % 2)
            opened.wait_dispatched()
            times.append(opened.get_message_store_timestamp("t", number % 2, at.queue_offset))
    return str(path), times


def tailed(store, start, tags="*"):
    return [line["body"] for line in tail_messages("t", Target(store), start, tags, follow=False)]


def test_the_last_messages_are_those_of_all_queues_in_order_of_time(store):
    path, times = store
    assert tailed(path, Start(last=1)) in (["4"], ["5"]) if times[4] == times[5] else ["5"]
    assert set(tailed(path, Start(last=100))) == set("012345")
    assert tailed(path, Start(last=2), "a") == ["2", "4"]  # of each queue two are looked at, then the tag decides
    assert tailed(path, Start()) == []
    assert sorted(tailed(path, Start("1"))) == ["2", "3", "4", "5"]


def test_a_time_is_the_first_store_time(store):
    path, times = store
    assert sorted(tailed(path, Start(since_ms=times[3]))) == [
        str(number) for number in range(6) if times[number] >= times[3]]
    assert tailed(path, Start(since_ms=times[5] + 1)) == []
    with pytest.raises(StoreError, match="no server has this directory open"):
        [*tail_messages("t", Target(path), Start(last=1), "*", follow=True)]


def test_a_duration_longer_than_the_clock_is_the_first_time(run, store):
    code, out, _ = run("tail", store[0], "--topic", "t", "--since", "99999999d", "--no-follow")
    assert (code, len(out.splitlines())) == (0, 6)


@pytest.mark.parametrize(("words", "complaint"), [
    (("--since", "yesterday"), "--since 'yesterday' is neither a duration such as 10m nor a time such as 2026-01-31"),
    (("--since", "10m", "--last", "3"), "use one of --from, --last and --since"),
    (("--from", "first", "--last", "3"), "use one of --from, --last and --since"),
])
def test_starts_that_contradict_each_other_are_refused(run, words, complaint):
    code, _, err = run("tail", "s", "--topic", "t", *words)
    assert (code, complaint in err) == (2, True)
