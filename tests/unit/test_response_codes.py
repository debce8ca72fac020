"""What an answer of a server means for a user is said first, then the server's own words."""

from __future__ import annotations

import pytest

from tailrace.errors import RemotingCommandError
from tailrace.response_codes import MEANINGS, SPECIAL_MEANINGS, ResponseCode, explained_code


@pytest.mark.parametrize(("code", "remark", "begins"), [
    (1, "The broker does not support consumer to filter message by SQL92",
     "filters by SQL92 are off on this broker; set enablePropertyFilter=true in its settings"),
    (1, "no space for /store/commitlog/0: [Errno 28]", "the disk of the broker has no room"),
    (2, "[REJECTREQUEST]system busy, start flow control for a while", "too many requests wait"),
    (2, "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave", "a slave does not serve"),
    (13, "body: 5000000 bytes, maxMessageSize allows 4194304", "the message is too long"),
    (13, "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4096KB",
     "the message is too long or its properties are"),
    (13, "the message body is empty", "the broker does not take such a message; correct the message"),
    (14, "service not available now.", "the broker is opening its store or stopping, or refuses writes"),
    (16, "username cannot be null.", "the server serves only users; give the access key and secret key of a user"),
    (16, "the topic[t] sending message is forbidden", "the user, the topic or the group does not permit this; check"),
    (17, "topic[t] not exist, apply first please!", "the server does not have the topic"),
    (23, "parse the consumer's subscription failed: character 8", "the filter expression is wrong"),
    (26, "subscription group [g] does not exist", "the broker does not have the group; create it"),
    (206, "the consumer group[g] not online", "the group has no running member"),
    (604, "recall failed, timestamp invalid", "the message can be recalled no more; it is delivered, or due now"),
    (604, "recall failed, topic not match", "the recall handle is not one of this topic and broker"),
    (604, "group g is bound to topic 'x'", "the request does not fit the state"),
    (1500, "please go away", "the server is stopping; try again when it runs"),
])
def test_our_sentence_comes_first_and_the_words_of_the_server_after_it(code, remark, begins):
    text = str(RemotingCommandError(code, remark, "h:1"))
    assert text.startswith(begins)
    assert text.endswith(f" (code {code} from h:1: {remark})")


def test_a_remark_of_several_lines_is_cut_in_the_text_and_kept_in_the_error():
    error = RemotingCommandError(2, "busy\nat java.lang.Thread", "h:1")
    assert str(error).endswith("(code 2 from h:1: busy)")
    assert error.remark == "busy\nat java.lang.Thread"
    assert str(RemotingCommandError(17, "no route", "h:1", "h:1 has no topic ordres")) == (
        "h:1 has no topic ordres (code 17 from h:1: no route)")


def test_a_code_that_is_not_known_is_shown_as_it_came():
    assert explained_code(4711, "odd", "h:1") == "code 4711 from h:1: odd"
    assert explained_code(4711, "") == "code 4711"


def test_a_meaning_can_be_the_start_of_a_line_and_a_sentence_of_a_page():
    for meaning in (*MEANINGS.values(), *(row[2] for row in SPECIAL_MEANINGS)):
        for text in meaning:
            assert text
            assert text[-1].isalnum()
            assert "\n" not in text


def test_a_special_meaning_is_one_of_a_code_that_is_explained():
    assert {code for code, _, _ in SPECIAL_MEANINGS} <= {*MEANINGS}
    assert ResponseCode.SUCCESS not in MEANINGS
