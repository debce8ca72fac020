"""The checksum is the same by ISA-L and by zlib, from every byte to every byte."""

import random
import zlib

import pytest

from tailrace import kernels
from tailrace.kernels import record

DATA = random.Random(7).randbytes(700)
RANGES = [(start, until) for start in range(9) for until in range(start, 330)] + [(0, len(DATA))]


@pytest.mark.parametrize("lend", [True, False], ids=["isal", "zlib"])
def test_checksums_are_those_of_zlib(lend):
    address = kernels._find_crc32()
    record.use_crc32(address if lend else 0)
    try:
        for start, until in RANGES:
            assert record.crc32(DATA, start, until) == zlib.crc32(DATA[start:until]), (start, until)
    finally:
        record.use_crc32(address)


def test_the_module_shows_the_function():
    assert kernels._find_crc32(), "walks call zlib, which is slower"


def test_a_function_that_computes_something_else_is_not_used(monkeypatch, caplog):
    import ctypes

    wrong = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)(
        lambda *_: 1)
    monkeypatch.setattr(kernels, "_find_crc32", lambda: ctypes.cast(wrong, ctypes.c_void_p).value)
    try:
        if not kernels.compiled():
            pytest.skip("interpreted kernels use zlib")
        kernels._lend_crc32(record)
        assert "another one" in caplog.text
        assert record.crc32(DATA, 0, 100) == zlib.crc32(DATA[:100])
    finally:
        monkeypatch.undo()
        kernels._lend_crc32(record)
