"""Self-signed certificates that a server creates at its start, for tests: clients cannot verify them."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import ssl
from typing import Final

from tailrace.env.clock import Clock, SystemClock
from tailrace.errors import MissingPackageError

__all__ = ["load_made_certificate", "self_signed"]

_DAYS: Final = 365


def load_made_certificate(context: ssl.SSLContext) -> None:
    """Load a new self-signed certificate into a context (``tls.test.mode.enable``). Raises MissingPackageError."""
    try:
        certificate, key = self_signed(SystemClock())
    except ModuleNotFoundError:
        what = "self-signed certificates (tls.test.mode.enable without tls.server.certPath)"
        raise MissingPackageError(what, "cryptography", "tls") from None
    held = os.memfd_create("tailrace-tls")  # OpenSSL reads only files; this one exists only in memory
    try:
        os.write(held, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{held}")
    finally:
        os.close(held)


def self_signed(clock: Clock, host: str = "localhost") -> tuple[bytes, bytes]:
    """Return a new certificate for ``host`` and the loopback names, and its key, both in PEM.

    Raises ModuleNotFoundError without the package ``cryptography``.
    """
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    for address in dict.fromkeys(("127.0.0.1", "::1", host)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(names))), critical=False)
        .sign(key, hashes.SHA256()))
    return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
