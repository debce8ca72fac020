"""Options for TLS, which a read from brokers and the sink have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.errors import ConfigError
from tailrace.remoting.tls import TlsOptions, client_context, tls_options

__all__ = ["TLS_NAMES", "tls_in"]

TLS_NAMES: Final = {
    "tlsTrustCertPath": "trust_cert_path", "tlsCertPath": "cert_path", "tlsKeyPath": "key_path",
    "tlsAuthServer": "auth_server", "tlsCheckServerName": "check_server_name",
}
"""Members of TlsOptions. A key password is not possible, because plans and logs show options."""


def tls_in(texts: Mapping[str, str], problems: list[str]) -> TlsOptions | None:
    """Return the TLS settings from the options tls and tls..., whose names are in lower case; None without TLS."""
    said = {member: texts[name.lower()] for name, member in TLS_NAMES.items() if name.lower() in texts}
    switch = texts.get("tls", "false").lower()
    if switch not in {"true", "false"}:
        problems.append(f"tls={switch} is neither true nor false")
    elif switch == "false" and said:
        problems.append("the options tls... need tls=true")
    elif switch == "true":
        try:
            made = tls_options(said, "options tls...")
            client_context(made)
        except ConfigError as error:
            problems += error.problems
        else:
            return made
    return None
