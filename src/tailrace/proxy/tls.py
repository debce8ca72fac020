"""The certificate of the endpoint, from files that may be replaced while it is served."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import grpc

from tailrace.errors import ConfigError

__all__ = ["GrpcCertificate", "GrpcFiles", "made_credentials"]

_NUMBERS: Final = itertools.count()
_RSA_BITS: Final = 2048
"""OpenSSL, which serves the other ports, refuses shorter keys by default; most clients do as well."""


class GrpcFiles(NamedTuple):
    """Files of the certificate, all PEM, and the settings or options that name them."""

    cert_path: str
    key_path: str
    key_password: str = ""
    trust_path: str = ""
    """CAs of clients. Empty: clients need no certificate."""
    setting: str = "--grpc-tls"
    key_setting: str = "--grpc-tls-key"


@final
class GrpcCertificate:
    """Credentials of a server, whose certificate `load` replaces for new connections."""

    def __init__(self, files: GrpcFiles) -> None:
        """Load the files. Raises ConfigError."""
        self._files = files
        self._first = self._configuration()
        self._next: list[Any] = []

    def credentials(self) -> Any:
        """Return the credentials for a port."""
        return grpc.dynamic_ssl_server_credentials(
            self._first, self._changed, require_client_authentication=bool(self._files.trust_path))

    def load(self) -> Callable[[], None]:
        """Read the files again; return what has new connections use them. Raises ConfigError."""
        made = self._configuration()

        def use() -> None:
            self._next[:] = [made]

        return use

    def _changed(self) -> Any:
        """Return the new certificate, once; None otherwise. gRPC calls this in its threads before each handshake."""
        try:
            return self._next.pop()
        except IndexError:
            return None

    def _configuration(self) -> Any:
        files = self._files
        certificate, key = _read(files.cert_path, files.setting), _read(files.key_path, files.key_setting)
        key = _checked_key(files, certificate, key)
        roots = _roots(files.trust_path)
        if not _is_usable(certificate, key, roots):
            raise ConfigError(
                f"{files.setting} {files.cert_path}: the gRPC library cannot use this certificate; its keys are RSA of "
                "2048 bits or more, ECDSA of the curves P-256, P-384 and P-521, and Ed25519")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], roots)


def made_credentials(certificate: bytes, key: bytes, trust_path: str) -> Any:
    """Return credentials of a certificate that was made at the start. Raises ConfigError."""
    return grpc.ssl_server_credentials(
        [(key, certificate)], _roots(trust_path), require_client_auth=bool(trust_path))


def _roots(trust_path: str) -> bytes | None:
    """Return the CAs of clients; None if clients need no certificate."""
    if not trust_path:
        return None
    roots = _read(trust_path, "tls.server.trustCertPath")
    _certificates(roots, f"tls.server.trustCertPath {trust_path}")
    return roots


def _is_usable(certificate: bytes, key: bytes, roots: bytes | None) -> bool:
    """Return whether the gRPC library accepts the files.

    The library says so only when it makes a port, here one without a network. Otherwise it would keep the old
    certificate without a word when the new one is used for the first time.
    """
    server = grpc.server(None)
    try:
        server.add_secure_port(
            f"unix-abstract:tailrace-{os.getpid()}-{next(_NUMBERS)}",
            grpc.ssl_server_credentials([(key, certificate)], roots, require_client_auth=roots is not None))
    except RuntimeError:
        return False
    finally:
        server.stop(None)
    return True


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting} {path}: {error.strerror}") from None


def _certificates(pem: bytes, where: str) -> Any:
    from cryptography import x509  # noqa: PLC0415 - only with TLS
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415

    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where} cannot be read as PEM: {error}") from None


def _checked_key(files: GrpcFiles, certificate: bytes, key: bytes) -> bytes:
    """Return the key without its password, which the gRPC library cannot take. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only with TLS
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    first = _certificates(certificate, f"{files.setting} {files.cert_path}")[0]
    try:
        try:
            found = load_pem_private_key(key, None)
        except TypeError:
            found = load_pem_private_key(key, files.key_password.encode())
            key = found.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{files.key_setting} {files.key_path} cannot be read as PEM: {error}; is it damaged, or is its password "
            "wrong or missing?") from None
    if first.public_key() != found.public_key():
        raise ConfigError(f"{files.key_setting} {files.key_path} is not the key of {files.setting} {files.cert_path}")
    if isinstance(found, RSAPrivateKey) and found.key_size < _RSA_BITS:
        raise ConfigError(
            f"{files.setting} {files.cert_path}: the key has {found.key_size} bits; RSA needs {_RSA_BITS} or more")
    return key
