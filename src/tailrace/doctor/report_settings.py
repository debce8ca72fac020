"""Settings as a report for other people shows them: by their declarations, without secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from tailrace.auth_settings import AuthConfig
from tailrace.config import SECRET, BrokerConfig, NameServerConfig, StoreConfig, _parse, option_name
from tailrace.properties import setting_text
from tailrace.tls_settings import TLS_ALIASES, TlsConfig

__all__ = ["SETTINGS", "shown_settings"]

SETTINGS: Final[Mapping[str, dataclasses.Field[Any]]] = {
    option_name(f): f for kind in (StoreConfig, BrokerConfig, NameServerConfig, AuthConfig, TlsConfig)
    for f in dataclasses.fields(kind)}
"""Every declared setting, by RocketMQ's name."""
_TEXT_MAX: Final = 300


def shown_settings(values: Mapping[str, str], *, changed_only: bool = False) -> dict[str, str]:
    """Return each setting with the value that may be shown.

    A value is shown only if the setting is declared, is not a secret, does not name a file with a secret, and fits
    its declaration. A setting without a declaration may be anything, so its value is hidden. With ``changed_only``
    settings with the default value are left out.
    """
    found = {}
    for name, text in sorted(values.items()):
        declared = SETTINGS.get(TLS_ALIASES.get(name, name))
        if changed_only and declared is not None and text.strip() == setting_text(declared.default):
            continue
        found[name[:_TEXT_MAX]] = _shown(declared, text.strip())
    return found


def _shown(declared: dataclasses.Field[Any] | None, text: str) -> str:
    if declared is None:
        return f"{SECRET} (not a setting of Tailrace)"
    if declared.metadata["secret"] or declared.metadata["secret_file"]:
        return SECRET if text else ""
    try:
        value = _parse(text, declared.default)
    except ValueError:
        return f"{SECRET} (does not fit)"
    choices = declared.metadata["choices"]
    if choices and value not in choices:
        return f"{SECRET} (does not fit)"
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text)} characters)"
