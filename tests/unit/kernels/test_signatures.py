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
from tailrace.formats.remoting import MQ_VERSION

TWINS = [interpreted("signatures"), kernels.signatures]


def signature(secret, content):
    return base64.b64encode(hmac.new(secret, content, hashlib.sha1).digest())


@given(st.binary(max_size=64), st.binary(max_size=300), st.binary(max_size=300))
def test_signatures_are_hmacs(secret, fields, body):
    wanted = signature(secret, fields + body)
    block = secret.ljust(64, b"\0")
    for twin in TWINS:
        for key in (twin.begin(block), block):
            assert twin.signature(key, fields, body) == wanted


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 4096, 16384, 16385, 1_000_000])
def test_sizes_around_blocks_and_of_long_bodies(size):
    body, block = bytes(place * 7 & 0xFF for place in range(size)), b"secret".ljust(64, b"\0")
    for twin in TWINS:
        key = twin.begin(block)
        assert twin.signature(key, b"", body) == twin.signature(key, body, b"") == signature(b"secret", body)


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=5), st.binary(max_size=200))
def test_a_signer_with_the_kernel_is_one_without(secret, ext, body):
    assert Signer(secret, kernels.signatures).signature(ext, body, MQ_VERSION) == (
        Signer(secret).signature(ext, body, MQ_VERSION))


@pytest.mark.parametrize("twin", TWINS)
def test_a_key_has_one_block(twin):
    for size in (0, 63, 65, 192):
        with pytest.raises(ValueError, match="a key of"):
            twin.begin(bytes(size))


def test_without_the_functions_hashlib_is_used():
    if not kernels.compiled():
        pytest.skip("the kernels are not compiled")
    made = kernels.signatures
    block = b"secret".ljust(64, b"\0")
    key = made.begin(block)
    made.use_sha1(0, 0, 0)
    try:
        assert made.begin(block) == block
        assert made.signature(block, b"a", b"b") == signature(b"secret", b"ab")
        with pytest.raises(ValueError, match="a key of 192 bytes"):
            made.signature(key, b"a", b"b")
    finally:
        kernels._lend_sha1()
    assert made.begin(block) == key
