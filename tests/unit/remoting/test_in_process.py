"""Connections without a socket."""

import asyncio

import pytest

from tailrace.errors import RefusalError, RemotingConnectError
from tailrace.formats.remoting import RemotingCommand, SerializeType, encode, sender_of
from tailrace.formats.requests.broker_headers import (
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from tailrace.remoting import InProcessConnection, RemotingServer
from tailrace.requests.reply import memory_of

LATER, NOW, REFUSED = 1, 2, 3


def served(test):
    def run():
        async def go():
            server = RemotingServer()
            server.loop = asyncio.get_running_loop()
            held = []
            server.register(lambda channel, request: held.append((channel, request)), LATER)
            server.register(lambda channel, request: request.answer(ext={"peer": channel.peer}), NOW)

            def refuse(channel, request):
                raise RefusalError(16, "no")

            server.register(refuse, REFUSED)
            await test(server, held)

        asyncio.run(go())

    return run


@served
async def test_answers_come_now_later_or_as_a_refusal(server, held):
    connection = InProcessConnection(server, ("10.0.0.1", 5))
    assert (await connection.call(NOW, {})).ext == {"peer": "10.0.0.1:5"}
    assert (await connection.call(REFUSED, {})).code == 16
    assert (await connection.call(99, {})).code == 3
    waiting = [connection.call(LATER, {"n": str(n)}) for n in range(2)]
    assert not any(future.done() for future in waiting)
    for channel, request in reversed(held):
        channel.answer(request, request.answer(ext=request.ext, body=b"b" * 70_000))
    answers = [await future for future in waiting]
    assert [answer.ext["n"] for answer in answers] == ["0", "1"]
    assert answers[0].body == b"b" * 70_000


@served
async def test_requests_are_sent_by_the_user_that_the_other_protocol_has_proven(server, held):
    for user in ("ann", ""):
        InProcessConnection(server, ("10.0.0.1", 5), user=user).call(LATER, {})
    assert [sender_of(request) for _, request in held] == ["ann", ""]


@served
async def test_an_answer_that_a_processor_has_encoded_is_decoded(server, held):
    """Also one in another encoding than the request's, and several in one write."""
    kinds = [SerializeType.ROCKETMQ, SerializeType.JSON]

    def encoded(channel, request):
        answer = request.answer(7, "remark", {"a": "b"}, b"body")
        answer.serialize_type = kinds[request.opaque % 2]
        return encode(answer)

    server.register(encoded, 40)
    connection = InProcessConnection(server, ("10.0.0.1", 5))
    for _ in range(2):
        found = await connection.call(40, {})
        assert (found.code, found.remark, found.ext, found.body) == (7, "remark", {"a": "b"}, b"body")
    waiting = [connection.call(LATER, {}) for _ in range(3)]
    held[0][0].write(b"".join(encoded(channel, request) for channel, request in held))
    assert [(await future).body for future in waiting] == [b"body"] * 3


@served
async def test_fields_stay_a_header_until_something_needs_their_text(server, held):
    question, found = SearchOffsetRequestHeader("t", 3, 1_700_000_000_000), SearchOffsetResponseHeader(5)
    connection = InProcessConnection(server, ("10.0.0.1", 5))
    answer = connection.call(LATER, question, b"body")
    channel, request = held[0]
    assert request.read(SearchOffsetRequestHeader) is question
    encoded = RemotingCommand(LATER, question.to_ext(), b"body")
    assert request.ext == encoded.ext
    assert memory_of(request) == memory_of(encoded)
    channel.answer(request, request.answer(ext=found))
    assert (await answer).read(SearchOffsetResponseHeader) is found
    assert encoded.answer(ext=found).ext == found.to_ext() == (await answer).ext


@served
async def test_the_body_of_an_answer_is_bytes_whatever_the_processor_made(server, held):
    server.register(lambda channel, request: request.answer(body=bytearray(b"body")), 41)
    found = await InProcessConnection(server, ("10.0.0.1", 5)).call(41, {})
    assert (type(found.body), found.body) == (bytes, b"body")


@served
async def test_a_request_of_the_broker_is_answered(server, held):
    asked = []
    connection = InProcessConnection(server, ("10.0.0.1", 5), asked.append)
    answer = asyncio.create_task(connection.channel.request(RemotingCommand(307, {"a": "b"}, b"body"), 10_000))
    while not asked:
        await asyncio.sleep(0)
    assert (asked[0].code, asked[0].ext, asked[0].body) == (307, {"a": "b"}, b"body")
    connection.reply(asked[0], asked[0].answer(body=b"stack"))
    assert (await answer).body == b"stack"


@served
async def test_a_closed_connection_fails_what_waits_and_is_forgotten(server, held):
    gone = []
    server.on_close = gone.append
    connection = InProcessConnection(server, ("10.0.0.1", 5))
    future = connection.call(LATER, {})
    connection.close()
    assert gone == [connection.channel]
    assert connection.closed
    assert server.channels == set()
    for failed in (future, connection.call(NOW, {})):
        with pytest.raises(RemotingConnectError):
            await failed
    held[0][0].answer(held[0][1], held[0][1].answer())  # an answer that comes too late
