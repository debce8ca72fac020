"""Certificates for tests of TLS: CAs, and what they have signed, as PEM files in a directory."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)


class Ca:
    """Signs certificates; ``directory`` gets ``NAME.pem`` and ``NAME.key`` of each, and ``ca.pem``."""

    def __init__(self, directory, name="Test CA"):
        self.directory = Path(directory)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        now = dt.datetime.now(dt.UTC)
        self._certificate = (
            x509.CertificateBuilder().subject_name(self._name).issuer_name(self._name)
            .public_key(self._key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY).not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256()))
        self.path = self._write(f"{name.replace(' ', '-').lower()}.pem", _pem(self._certificate))

    def make(self, name, *, hosts=("localhost", "127.0.0.1"), expired=False, password=None, end=None, key=None):
        """Return the paths of a certificate and its key."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        start, end = (now - 3 * DAY, now - 2 * DAY) if expired else (now - DAY, end or now + DAY)
        certificate = (
            x509.CertificateBuilder().subject_name(_named(name)).issuer_name(self._name)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(start).not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .sign(self._key, hashes.SHA256()))
        encryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption())
        return (
            self._write(f"{name}.pem", _pem(certificate)),
            self._write(f"{name}.key", key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)))

    def revoke(self, *certificates, name="revoked.pem", next_update=DAY):
        """Return the path of the list of revoked certificates, which has exactly these."""
        now = dt.datetime.now(dt.UTC)
        made = (x509.CertificateRevocationListBuilder().issuer_name(self._name)
                .last_update(now - 3 * DAY).next_update(now + next_update))
        for path in certificates:
            serial = x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - DAY).build())
        return self._write(name, _pem(made.sign(self._key, hashes.SHA256())))

    def _write(self, name, data):
        path = self.directory / name
        path.write_bytes(data)
        return str(path)


def _named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(text):
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)
