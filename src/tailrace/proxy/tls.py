"""The certificate of the endpoint, from files."""

from __future__ import annotations

from typing import Any

import grpc

from tailrace.errors import ConfigError

__all__ = ["credentials"]


def credentials(certificate: bytes, key: bytes) -> Any:
    """Return credentials of a certificate chain and its key, both PEM. Raises ConfigError."""
    try:
        from cryptography import x509  # noqa: PLC0415 - only with TLS
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

        first = x509.load_pem_x509_certificates(certificate)[0]
        if first.public_key() != load_pem_private_key(key, None).public_key():
            raise ConfigError("--grpc-tls-key is not the key of the certificate in --grpc-tls")
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"--grpc-tls or --grpc-tls-key cannot be read as PEM: {error}") from error
    return grpc.ssl_server_credentials([(key, certificate)])
