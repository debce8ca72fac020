"""Confirmations, jobs and ranges of the actions of the console, without a broker."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.console.actions import jobs as jobs_module
from tailrace.console.actions import resend, tokens
from tailrace.console.actions.forms import FieldError, Given, area, entry
from tailrace.console.actions.jobs import Job, Jobs
from tailrace.console.actions.tokens import LIFETIME_S, USED_MAX, TokenError, Tokens
from tailrace.console.elements import page_text
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import RefusalError
from tailrace.formats.remoting import ResponseCode
from tailrace.testing import SimClock


@pytest.fixture
def made():
    clock = SimClock()
    return clock, Tokens(clock, SeededEntropy(1), b"key")


def test_a_token_is_valid_once_for_its_user_action_and_content(made):
    _, keys = made
    said = {"values": {"topic": ["a"]}, "seen": "x"}
    token = keys.make("ann", "send", said)
    found = keys.check(token, "ann", "send", said)
    assert not found.is_used
    assert keys.use(found)
    assert keys.check(token, "ann", "send", said).is_used
    for user, action, content in (
        ("bob", "send", said), ("ann", "reset", said), ("ann", "send", {**said, "seen": "y"}),
        ("ann", "send", {**said, "values": {"topic": ["b"]}}), ("anns", "end", said),
    ):
        with pytest.raises(TokenError, match="not the one that was shown"):
            keys.check(token, user, action, content)


def test_a_token_ends_with_its_time_and_with_the_process(made):
    clock, keys = made
    token = keys.make("ann", "send", {})
    with pytest.raises(TokenError, match="restarted"):
        Tokens(clock, SeededEntropy(1), b"other key").check(token, "ann", "send", {})
    clock.advance((LIFETIME_S + 1) * 1_000)
    with pytest.raises(TokenError, match="older than 15 minutes"):
        keys.check(token, "ann", "send", {})


@given(st.text())
def test_no_other_text_is_a_token(text):
    keys = Tokens(SimClock(), SeededEntropy(1), b"key")
    with pytest.raises(TokenError):
        keys.check(text, "ann", "send", {})


def test_used_tokens_are_bounded_and_forgotten(made, monkeypatch):
    clock, keys = made
    monkeypatch.setattr(tokens, "USED_MAX", 3)
    for _ in range(3):
        assert keys.use(keys.check(keys.make("a", "b", {}), "a", "b", {}))
    assert not keys.use(keys.check(keys.make("a", "b", {}), "a", "b", {}))
    clock.advance((LIFETIME_S + 1) * 1_000)
    assert keys.use(keys.check(keys.make("a", "b", {}), "a", "b", {}))
    assert USED_MAX > 3


def test_a_job_runs_on_when_nobody_waits_and_its_result_stays():
    async def scenario():
        running, go_on = Jobs(), asyncio.Event()

        async def work(job):
            job.total = 1
            await go_on.wait()
            job.done = 1
            return ["done"]

        job = Job("1", "ann", "t", "a", "{}")
        waiting = asyncio.ensure_future(running.run(job, work))
        await asyncio.sleep(0)
        waiting.cancel()  # the browser has gone
        await asyncio.gather(waiting, return_exceptions=True)
        assert running.get("1", "ann").result is None
        assert running.get("1", "bob") is None
        go_on.set()
        await job.task
        assert (running.get("1", "ann").result, job.verdict) == (["done"], "Done")

    asyncio.run(scenario())


@pytest.mark.parametrize(("error", "text"), [
    (RefusalError(ResponseCode.NO_PERMISSION, "not allowed"), "not allowed"), (TimeoutError(), "has not answered"),
    (KeyError("x"), "KeyError"),
])
def test_a_job_that_fails_says_why(error, text):
    async def scenario():
        async def work(_):
            raise error

        job = Job("1", "ann", "t", "a", "{}")
        await Jobs().run(job, work)
        assert job.verdict == "Failed"
        assert text in page_text(job.result[0]).decode()

    asyncio.run(scenario())


def test_jobs_are_bounded_and_stop_before_their_next_step(monkeypatch):
    monkeypatch.setattr(jobs_module, "RUNNING_MAX", 2)
    monkeypatch.setattr(jobs_module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(jobs_module, "KEPT", 3)

    async def scenario():
        running, steps = Jobs(), []

        async def work(job):
            while not job.stopping:
                await asyncio.sleep(0)
            steps.append(job.number)
            return []

        for number in "12":
            running.check_room()
            await running.run(Job(number, "ann", "t", "a", "{}"), work)
        with pytest.raises(RefusalError, match="2 actions run already"):
            running.check_room()
        await running.stop()
        assert steps == ["1", "2"]
        with pytest.raises(RefusalError):
            running.check_room()

        async def nothing(_):
            return []

        for number in "3456":
            job = Job(number, "ann", "t", "a", "{}")
            await running.run(job, nothing)
            await job.task
        assert [number for number in "123456" if running.get(number, "ann")] == ["4", "5", "6"]

    asyncio.run(scenario())


RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(1, 200)), max_size=5).map(
    lambda found: [(queue, low, low + size) for queue, low, size in found])


@given(RANGES)
def test_batches_are_all_of_the_ranges_in_order(ranges):
    def each(parts):
        return [(queue, at) for queue, low, high in parts for at in range(low, high)]

    batches = list(resend._batches(ranges))
    assert each(part for batch in batches for part in batch) == each(ranges)
    assert all(len(each(batch)) == resend.BATCH for batch in batches[:-1])
    assert all(0 < len(each(batch)) <= resend.BATCH for batch in batches)


def test_ranges_end_where_a_confirmation_says():
    ranges = [(0, 5, 9), (1, 0, 3)]
    assert resend._until("", ranges) == ranges
    assert resend._until("0:7 1:9", ranges) == [(0, 5, 7), (1, 0, 3)]
    assert resend._until("0:7", ranges) == [(0, 5, 7)]
    assert resend._until("0:5 x 1: :3 1:-3", ranges) == []


def test_chosen_dead_letters_are_there_and_few():
    ranges = [(0, 5, 9)]
    assert resend._chosen(["0:8", "0:5", "0:5"], ranges) == [(0, 5, 6), (0, 8, 9)]
    for letters, text in ((["0:9"], "no dead letter 0:9"), (["1:5"], "no dead letter 1:5"), (["5"], "is not a dead"),
                          (["0:²"], "is not a dead"), ([f"0:{n}" for n in range(51)], "51 dead letters are chosen")):
        with pytest.raises(FieldError, match=text):
            resend._chosen(letters, ranges)


def test_the_page_of_a_chosen_dead_letter_is_found():
    ranges = [(0, 5, 9), (1, 100, 300)]
    for values, start in (({}, 0), ({"letter": ["0:6"]}, 0), ({"letter": ["1:200"]}, 100), ({"letter": ["1:²"]}, 0),
                          ({"from": ["7"]}, 7)):
        assert resend._start(Given(values), ranges) == start


@pytest.mark.parametrize("text", ["", "x", "-1", "²", "1.5", "9" * 30, "5"])
def test_a_number_of_a_form_is_whole_and_in_its_range(text):
    with pytest.raises(FieldError, match=r"Queue is .*; write a whole number from 0 to 4"):
        Given({"queue": [text]}).number("queue", "Queue", 0, 4)


@given(st.text(st.characters(codec="utf-8")))
def test_fields_give_back_what_html_can_hold(text):
    kept = "".join(c for c in text.replace("\r\n", "\n") if c >= " " or c in "\n\t")
    shown = page_text(area("Body", "body", Given({"body": [text]}))).decode()
    assert shown.count("<") == 5, "label and textarea, opened and closed, and the doctype"
    assert entry("Topic", "topic", Given({"topic": [kept]}))[0].get("value") == kept.strip()
