"""Signatures by OpenSSL's functions, by hashlib, and interpreted are the same."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted_kernels import interpreted

from tailrace import kernels
from tailrace.auth.signature import Signer

TWINS = [interpreted("signatures"), kernels.signatures]
BLOCK = b"secret".ljust(64, b"\0")
NAMES = st.text("abAB_é漢\ud800\U0001F600", max_size=12)
FIELDS = st.dictionaries(NAMES | st.sampled_from(["Signature", "_UNIQUE_KEY_QUERY"]), st.text(max_size=40), max_size=20)
VERSIONS = st.sampled_from([0, 399, 400, 479])


def digest(secret, content):
    return hmac.new(secret, content, hashlib.sha1).digest()


def signature(secret, ext, body, version):
    """AclUtils: values in the order of their names, the body after them, HmacSHA1, Base64."""
    left_out = {"Signature"} | ({"_UNIQUE_KEY_QUERY"} if version <= 399 else set())
    fields = "".join(value for name, value in sorted(ext.items()) if name not in left_out)
    return base64.b64encode(digest(secret, fields.encode("utf-8", "surrogatepass") + body))


@given(st.binary(max_size=64), st.binary(max_size=300), st.binary(max_size=300))
def test_digests_are_hmacs(secret, content, body):
    block = secret.ljust(64, b"\0")
    for twin in TWINS:
        for key in (twin.begin(block), block):
            assert twin.digest(key, content, body) == digest(secret, content + body)
            assert twin.digest(key, content) == digest(secret, content)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 4096, 16384, 16385, 1_000_000])
def test_sizes_around_blocks_and_of_long_bodies(size):
    body = bytes(place * 7 & 0xFF for place in range(size))
    for twin in TWINS:
        key = twin.begin(BLOCK)
        assert twin.digest(key, b"", body) == twin.digest(key, body, b"") == digest(b"secret", body)


@given(FIELDS, st.binary(max_size=200), VERSIONS)
def test_signatures_are_those_of_the_reference(ext, body, version):
    wanted = signature(b"secret", ext, body, version)
    for twin in TWINS:
        assert twin.signature(twin.begin(BLOCK), ext, body, version) == wanted


@pytest.mark.parametrize("size", [0, 900, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("rest", [0, 1, 124, 125, 1024, 1025, 20_000])
def test_values_around_the_size_of_a_piece(size, rest):
    ext = {"a": "x" * size, "b": "é" * 10, "c": "y" * size}
    for twin in TWINS:
        assert twin.signature(twin.begin(BLOCK), ext, bytes(rest), 479) == signature(b"secret", ext, bytes(rest), 479)


@given(FIELDS, st.binary(max_size=200), VERSIONS, st.text(max_size=30))
def test_only_the_signature_of_a_request_is_one(ext, body, version, other):
    made = signature(b"secret", ext, body, version).decode()
    for twin in TWINS:
        key = twin.begin(BLOCK)
        assert twin.is_signed(key, {**ext, "Signature": made}, body, version)
        wrong = [made[:-1], made + "=", made.lower(), "", "\ud800" * 28, "é" * 14, f"!{made[1:]}", f"{made[:26]}!="]
        for text in (*wrong, other):
            assert not twin.is_signed(key, {**ext, "Signature": text}, body, version)
        assert not twin.is_signed(key, {**ext, "Signature": made}, body + b"x", version)
        assert not twin.is_signed(key, {n: v for n, v in ext.items() if n != "Signature"}, body, version)


@pytest.mark.parametrize(("more", "is_right"), [
    ({f"f{number}": "1" for number in range(99)}, True), ({f"f{number}": "1" for number in range(100)}, False),
    ({"x" * 64: "1"}, True), ({"x" * 65: "1"}, False), ({"é" * 33: "1"}, True), ({"é" * 64: "1"}, True),
    ({"é" * 65: "1"}, False), ({"a" * 64: "1", "é" * 40: "2", "b": "3"}, True)])
def test_a_request_over_a_limit_is_not_signed(more, is_right):
    ext = {**more, "Signature": signature(b"secret", more, b"", 479).decode()}
    for twin in TWINS:
        assert twin.is_signed(twin.begin(BLOCK), ext, b"", 479) == is_right
        assert twin.signature(twin.begin(BLOCK), ext, b"", 479).decode() == ext["Signature"]


def request(body=b"", version=479, secret=b"secret", **ext):
    """Return the fields of a signed request, and what else is signed."""
    ext = {"AccessKey": "ann", **ext}
    return {**ext, "Signature": signature(secret, ext, body, version).decode()}, body, version


@pytest.mark.parametrize("twin", TWINS)
def test_a_proof_knows_the_sender_of_a_request_that_is_allowed_and_signed(twin):
    scope = object()
    proof = twin.Proof(scope, "ann", twin.begin(BLOCK))
    send, pull = request(b"body", b="orders", a="g"), request(topic="orders", group="g")
    assert proof.sender(scope, 310, *send) is None
    proof.allow(310, ("b",), send[0])
    proof.allow(11, ("topic", "group"), pull[0])
    proof.allow(26, (), {})
    for _ in range(3):
        assert proof.sender(scope, 310, *send) == proof.sender(scope, 11, *pull) == "ann"
        assert proof.sender(scope, 26, *request(any="x")) == "ann"
        assert proof.sender(object(), 310, *send) is None
        for code, other in (
            (310, request(b"body", b="secret", a="g")), (310, request(b"body", a="g")), (11, send), (10, send),
            (11, request(topic="orders", group="h")), (11, request(topic="g", group="orders")),
            (11, request(topic="orders")), (310, request(b="orders", secret=b"wrong")),
            (310, ({**send[0], "Signature": "x"}, b"body", 479)), (310, (send[0], b"bodY", 479)),
            (310, request(b="orders", AccessKey="bob")), (310, request(b="orders", TailraceBinding="1;")),
            (310, ({n: v for n, v in send[0].items() if n != "Signature"}, b"body", 479)),
            (310, ({n: v for n, v in send[0].items() if n != "AccessKey"}, b"body", 479)), (310, ({}, b"", 479)),
        ):
            assert proof.sender(scope, code, *other) is None
    proof.forget()
    assert not proof.allows(310, send[0])
    assert proof.sender(scope, 310, *send) is None


@given(st.lists(st.tuples(FIELDS, VERSIONS, st.booleans()), max_size=6))
def test_what_a_proof_remembers_of_the_last_fields_never_decides(requests):
    for twin in TWINS:
        proof = twin.Proof(None, "ann", twin.begin(BLOCK))
        proof.allow(310, (), {})
        for ext, version, is_right in requests:
            ext, *rest = request(b"body", version, b"secret" if is_right else b"wrong", **{
                name: value for name, value in ext.items() if name.isascii() and name != "Signature"})
            backwards = dict(reversed(ext.items()))
            for fields in (ext, ext, backwards, backwards):
                assert proof.sender(None, 310, fields, *rest) == ("ann" if is_right else None)


def test_a_proof_refuses_what_is_no_text():
    proof = kernels.signatures.Proof(None, "ann", kernels.signatures.begin(BLOCK))
    proof.allow(310, (), {})
    for ext in ({"AccessKey": "ann", "b": 5}, {"AccessKey": "ann", 5: "b"}, {"AccessKey": "ann", "Signature": 5}):
        with pytest.raises((TypeError, AttributeError)):
            proof.sender(None, 310, ext, b"", 479)


@pytest.mark.parametrize("twin", TWINS)
def test_a_key_has_one_block(twin):
    for size in (0, 63, 65, 192):
        with pytest.raises(ValueError, match="a key of"):
            twin.begin(bytes(size))


def test_without_the_functions_hashlib_is_used():
    if not kernels.compiled():
        pytest.skip("the kernels are not compiled")
    made = kernels.signatures
    key = made.begin(BLOCK)
    ext, *rest = request(b"body", b="orders")
    made.use_sha1(0, 0, 0)
    try:
        assert made.begin(BLOCK) == BLOCK
        assert made.digest(BLOCK, b"a", b"b") == digest(b"secret", b"ab")
        assert made.signature(BLOCK, ext, *rest).decode() == ext["Signature"]
        proof = made.Proof(None, "ann", BLOCK)
        proof.allow(310, ("b",), ext)
        assert proof.sender(None, 310, ext, *rest) == "ann"
        assert proof.sender(None, 310, ext, b"other", 479) is None
        with pytest.raises(ValueError, match="a key of 192 bytes"):
            made.signature(key, ext, *rest)
    finally:
        kernels._lend_sha1()
    assert made.begin(BLOCK) == key


@given(st.text(min_size=1, max_size=16), st.text(max_size=16))  # a longer one than a block is hashed
def test_a_signer_is_of_its_secret_only(secret, other):
    assert Signer(secret).is_of(secret)
    assert Signer(secret).is_of(other) == (secret.rstrip("\0") == other.rstrip("\0"))


@pytest.mark.parametrize("twin", TWINS)
def test_fields_in_any_order_and_with_other_names_are_signed(twin):
    """More often than a proof replaces the order that it remembers, and with names that it does not remember."""
    proof = twin.Proof(None, "ann", twin.begin(BLOCK))
    proof.allow(310, ("b",), {"b": "orders"})
    assert (proof.knows(310), proof.knows(11)) == (True, False)
    for turn in range(250):
        names = [f"n{(turn * 7 + number * 5) % 23}" for number in range(5)] + ["x" * 60 for _ in range(turn % 2)]
        many = {f"m{number}": "1" for number in range(turn % 40)}
        ext, *rest = request(b"body", b="orders", **many, **dict.fromkeys(names, "value"))
        for _ in range(2):
            assert proof.sender(None, 310, ext, *rest) == "ann"
            assert proof.sender(None, 310, {**ext, "n0": "other"}, *rest) is None
