"""TLS contexts: of a server from `tailrace.tls_settings.TlsConfig`, of a client from `TlsOptions`.

Both use OpenSSL through the standard library. A certificate file that cannot be used raises ConfigError, which
names the file and the reason.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from tailrace.errors import ConfigError
from tailrace.tls_settings import TlsConfig

__all__ = ["TlsOptions", "client_context", "options_of", "outgoing_tls", "server_context", "tls_options"]

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_OF_1_3: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""The ones that OpenSSL has on by default, and that Python cannot choose from."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How a client uses TLS; the names are those of RocketMQ's ``tls.client.*``. Paths are of PEM files."""

    trust_cert_path: str = ""
    """Certificates of the CAs that the server's certificate may be from. Empty: the CAs that this machine trusts."""
    cert_path: str = ""
    """Certificate of the client, if servers ask for one."""
    key_path: str = ""
    """Private key of the client."""
    key_password: str = field(default="", repr=False)
    """Password of that key, if it is encrypted."""
    auth_server: bool = True
    """Whether the server's certificate is verified. False: anybody on the way can read and change everything."""
    check_server_name: bool = True
    """Whether the certificate must name the host or address that the client connects to."""
    ciphers: str = ""
    """As ``tls.ciphers``."""
    protocols: str = ""
    """As ``tls.protocols``."""


_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def tls_options(values: Mapping[str, Any], where: str) -> TlsOptions:
    """Return options by the names of the members of `TlsOptions`, with texts as values. Raises ConfigError."""
    found: dict[str, Any] = {}
    problems = []
    for name, value in values.items():
        like = TlsOptions.__dataclass_fields__.get(name)
        if like is None:
            problems.append(f"{where}: TLS has no option {name}; it has {', '.join(TlsOptions.__dataclass_fields__)}")
        elif isinstance(like.default, bool):
            chosen = value if isinstance(value, bool) else _TRUE.get(str(value).strip().lower())
            if chosen is None:
                problems.append(f"{where}: {name} is true or false")
            found[name] = chosen
        elif isinstance(value, str):
            found[name] = value
        else:
            problems.append(f"{where}: {name} is a text")
    if problems:
        raise ConfigError(*problems)
    return TlsOptions(**found)


def options_of(tls: bool | TlsOptions | None) -> TlsOptions | None:
    """Return the options that the argument ``tls`` of a client means, None for no TLS. Raises ConfigError."""
    if tls is None or isinstance(tls, bool):
        return TlsOptions() if tls else None
    if not isinstance(tls, TlsOptions):
        raise ConfigError("tls is True, False or TlsOptions(...)")
    return tls


def client_context(tls: bool | TlsOptions | None) -> ssl.SSLContext | None:
    """Return the context for connections of a client, None without TLS. Raises ConfigError."""
    options = options_of(tls)
    if options is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.auth_server and options.check_server_name
    if not options.auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif options.trust_cert_path:
        _trust(context, options.trust_cert_path, "trust_cert_path")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if bool(options.cert_path) != bool(options.key_path):
        raise ConfigError("cert_path and key_path of TLS: say both or neither")
    if options.cert_path:
        _certificate(context, options.cert_path, options.key_path, options.key_password)
    _choose(context, options.ciphers, options.protocols)
    return context


def outgoing_tls(config: TlsConfig) -> TlsOptions | None:
    """Return how the broker connects to name servers of other processes.

    The name in a certificate is not compared, as a Java broker does not compare it.
    """
    if not config.client_uses_tls:
        return None
    return TlsOptions(
        trust_cert_path=config.client_trust_cert_path, cert_path=config.client_cert_path,
        key_path=config.client_key_path, key_password=config.client_key_password,
        auth_server=config.client_auth_server and not config.test_mode, check_server_name=False,
        ciphers=config.ciphers, protocols=config.protocols)


def server_context(config: TlsConfig) -> ssl.SSLContext | None:
    """Return the context for connections to a server, None if it has no certificate. Raises ConfigError."""
    if config.mode == "disabled" or not (config.test_mode or config.cert_path):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _choose(context, config.ciphers, config.protocols)
    if config.test_mode:
        from tailrace.remoting.tls_certificate import load_made_certificate  # noqa: PLC0415 - needs cryptography

        load_made_certificate(context)
        return context
    _certificate(context, config.cert_path, config.key_path, config.key_password)
    if config.auth_client and config.need_client_auth != "none":
        # Without verification (authClient=false) a certificate proves nothing, so clients are not asked for one.
        context.verify_mode = ssl.CERT_REQUIRED if config.need_client_auth == "require" else ssl.CERT_OPTIONAL
        if config.trust_cert_path:
            _trust(context, config.trust_cert_path, "tls.server.trustCertPath")
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def _trust(context: ssl.SSLContext, path: str, name: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} {path}: {_why(error)}") from None


def _certificate(context: ssl.SSLContext, cert_path: str, key_path: str, password: str) -> None:
    """Load a certificate and its key; without a password OpenSSL must not ask the terminal for one."""
    try:
        context.load_cert_chain(cert_path, key_path, lambda: password)
    except (OSError, ValueError) as error:
        hint = ""
        if isinstance(error, ssl.SSLError) and "key values mismatch" in _why(error):
            hint = "; the key is of another certificate"
        elif isinstance(error, ssl.SSLError) and not isinstance(error, FileNotFoundError):
            hint = "; is one of them damaged, or is the password of the key wrong or missing?"
        raise ConfigError(f"certificate {cert_path} with key {key_path}: {_why(error)}{hint}") from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _choose(context: ssl.SSLContext, ciphers: str, protocols: str) -> None:
    """Set protocols and cipher suites from the texts of ``tls.protocols`` and ``tls.ciphers``."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        names = [name.strip() for name in protocols.split(",")]
        if wrong := [name for name in names if name not in _VERSIONS]:
            raise ConfigError(f"tls.protocols: {', '.join(wrong)} is not supported; known are TLSv1.2 and TLSv1.3")
        context.minimum_version = min(_VERSIONS[name] for name in names)
        context.maximum_version = max(_VERSIONS[name] for name in names)
    if not ciphers:
        return
    suites = [name.strip() for name in ciphers.split(",") if name.strip()]
    modern = [name for name in suites if name in _SUITES_OF_1_3]
    older = [name for name in suites if name not in _SUITES_OF_1_3]
    if modern and len(modern) < len(_SUITES_OF_1_3):
        raise ConfigError(f"tls.ciphers: the suites of TLSv1.3 can only be used together: {', '.join(_SUITES_OF_1_3)}")
    if older:
        try:
            context.set_ciphers(":".join(map(_openssl_name, older)))
        except ssl.SSLError:
            raise ConfigError(f"tls.ciphers: OpenSSL knows none of {', '.join(older)}") from None
        chosen = {cipher["name"] for cipher in context.get_ciphers()}
        if wrong := [name for name in older if _openssl_name(name) not in chosen]:
            raise ConfigError(f"tls.ciphers: OpenSSL does not know {', '.join(wrong)}")
    if not modern:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version > 0:
        raise ConfigError("tls.ciphers has no suite for a protocol of tls.protocols")


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2, from ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    exchange = "" if exchange == "RSA" else f"{exchange}_"
    return f"{exchange}{cipher}".replace("_", "-")
