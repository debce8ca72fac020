"""Dates of certificates and of lists of revoked ones, compared with what the package cryptography reads."""

import base64
import datetime as dt
import random
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import Ca
from cryptography import x509

from tailrace.formats.x509_dates import certificate_dates, crl_dates


def ms(time):
    return int(time.timestamp()) * 1000


@pytest.mark.parametrize("end", [
    dt.datetime(2049, 12, 31, 23, 59, 59, tzinfo=dt.UTC), dt.datetime(2050, 1, 1, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC), dt.datetime(2027, 2, 3, 4, 5, 6, tzinfo=dt.UTC)])
def test_dates_of_every_certificate_of_a_file(end, tmp_path):
    ca = Ca(tmp_path)
    first, second = ca.make("first", end=end), ca.make("second", hosts=[f"host-{n}.example.com" for n in range(500)])
    text = b"a comment\n" + b"".join(Path(path).read_bytes() for path in (first[0], second[0], ca.path, first[1]))
    read = x509.load_pem_x509_certificates(text)
    assert len(read) == 3
    assert certificate_dates(text) == [(ms(c.not_valid_before_utc), ms(c.not_valid_after_utc)) for c in read]
    assert certificate_dates(text)[0].end_ms == ms(end)


def test_dates_of_lists(tmp_path):
    ca = Ca(tmp_path)
    path = ca.revoke(ca.make("gone")[0])
    text = Path(path).read_bytes()
    read = x509.load_pem_x509_crl(text)
    assert crl_dates(text + text) == [(ms(read.last_update_utc), ms(read.next_update_utc))] * 2
    assert crl_dates(b"no list") == certificate_dates(text) == []


def test_damaged_and_cut_bytes_raise_a_value_error_or_give_dates(tmp_path):
    ca, chance = Ca(tmp_path), random.Random(7)
    pairs = [(certificate_dates, ca.make("one")[0]), (crl_dates, ca.revoke(ca.make("two")[0]))]
    for read, path in pairs:
        kind = b"CERTIFICATE" if read is certificate_dates else b"X509 CRL"
        text = Path(path).read_bytes()
        body = base64.b64decode(b"".join(text.splitlines()[1:-1]))
        for _ in range(2_000):
            damaged = bytearray(body)
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            cut = bytes(damaged[: chance.randrange(len(damaged) + 1)]) if chance.random() < 0.3 else bytes(damaged)
            pem = b"-----BEGIN " + kind + b"-----\n" + base64.encodebytes(cut) + b"-----END " + kind + b"-----\n"
            try:
                found = read(pem)
            except ValueError:
                continue
            assert len(found) <= 1
