"""The gRPC endpoint of ``tailrace serve``: its options, address and certificate."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.broker.listeners import Address
from tailrace.env.clock import SystemClock
from tailrace.errors import ConfigError

if TYPE_CHECKING:
    from tailrace.proxy.server import GrpcListener
    from tailrace.remoting.limits import CallLimits

__all__ = ["GrpcPlace", "grpc_place"]

SELF_SIGNED: Final = "self-signed"
_PACKAGES: Final = ("grpc", "google.protobuf", "rocketmq.grpc_protocol")


class GrpcPlace(NamedTuple):
    """Address and certificate (PEM) of the endpoint. Without a certificate it accepts connections without TLS."""

    listen: Address
    certificate: bytes = b""
    key: bytes = b""
    self_signed: bool = False

    def listener(self, limits: CallLimits) -> GrpcListener:
        """Listen. Raises OSError or ConfigError."""
        from tailrace.proxy.server import GrpcListener  # noqa: PLC0415 - only with --grpc
        from tailrace.proxy.tls import credentials  # noqa: PLC0415
        from tailrace.remoting.tls_certificate import self_signed  # noqa: PLC0415

        certificate, key = self_signed(SystemClock(), self.listen[0]) if self.self_signed else (
            self.certificate, self.key)
        return GrpcListener(*self.listen, credentials(certificate, key) if certificate else None, limits)


def grpc_place(listen: Address | None, certificate: str, key: str) -> GrpcPlace | None:
    """Return the endpoint from options and settings; None if it is not configured.

    Raises ValueError for options that contradict each other, and ConfigError if a package is missing.
    """
    if listen is None:
        if certificate or key:
            raise ValueError("--grpc-tls and --grpc-tls-key need --grpc or the setting grpcServerPort")
        return None
    if missing := [name for name in _PACKAGES if not _is_installed(name)]:
        raise ConfigError(
            f"the gRPC endpoint needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'tailrace[grpc]'")
    if certificate == SELF_SIGNED:
        if key:
            raise ValueError("--grpc-tls-key goes with a certificate of --grpc-tls, not with self-signed")
    elif bool(certificate) != bool(key):
        raise ValueError("--grpc-tls FILE and --grpc-tls-key FILE go together; --grpc-tls self-signed needs no key")
    if certificate and not _is_installed("cryptography"):
        raise ConfigError("--grpc-tls needs the package cryptography: pip install 'tailrace[grpc]'")
    if not certificate or certificate == SELF_SIGNED:
        return GrpcPlace(listen, self_signed=bool(certificate))
    return GrpcPlace(listen, Path(certificate).read_bytes(), Path(key).read_bytes())


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
