"""Rules of the audit for faults that the present code no longer produces."""

from __future__ import annotations

import random

import numpy as np

from tailrace.kernels.shared import constants as C
from tailrace.store.verification import Claims, rows_with_odd_properties
from tailrace.store.walk.scan import LogChunk


def is_odd(stored):
    pieces = [piece for piece in stored.split(b"\x02") if piece]
    return b"\0" in stored or any(piece.find(b"\x01") < 1 for piece in pieces)


def test_odd_properties_are_reported_row_by_row():
    rnd = random.Random(9)
    odd = 0
    for _ in range(300):
        texts = [
            bytes(rnd.choice(b"ab\x01\x01\x02\x02\0" if rnd.random() < 0.3 else b"a\x01b\x02")
                  for _ in range(rnd.choice([0, 0, 1, 2, 5, 9])))
            if rnd.random() < 0.5 else b"KEYS\x01a b\x02TAGS\x01t\x02"
            for _ in range(rnd.randint(0, 6))
        ]
        rows = np.zeros((len(texts), C.COLUMNS), dtype=np.int64)
        data = b""
        for number, text in enumerate(texts):
            data += b"head"
            rows[number, C.PROPS_POS], rows[number, C.PROPS_LEN] = len(data), len(text)
            data += text
        wanted = [number for number, text in enumerate(texts) if is_odd(text)]
        odd += len(wanted)
        assert rows_with_odd_properties(LogChunk(data, 0, rows)) == wanted, texts
    assert odd > 100


def test_gaps_between_claims():
    claims = Claims()
    for start, count in [(5, 2), (7, 1), (20, 5), (10, 2), (11, 3)]:
        claims.add(("t", 0), start, count)
    assert claims.runs["t", 0][0] == (5, 8), "what follows is one run"
    assert list(claims.gaps(("t", 0), 0, 30)) == [(0, 5), (8, 10), (14, 20), (25, 30)]
    assert list(claims.gaps(("t", 0), 6, 12)) == [(8, 10)]
    assert list(claims.gaps(("t", 1), 3, 4)) == [(3, 4)]
    later = Claims()
    later.add(("t", 0), 25, 5)
    claims.join(later)
    assert list(claims.gaps(("t", 0), 14, 30)) == [(14, 20)]
