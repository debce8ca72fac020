"""PyIceberg's catalogue of the REST protocol, whose requests end: PyIceberg itself waits for an answer for ever."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, final

from pyiceberg.catalog import CatalogType, infer_catalog_type
from pyiceberg.catalog.rest import RestCatalog
from requests import Session

__all__ = ["ANSWER_S", "TimedRestCatalog", "is_rest"]

CONNECT_S: Final = 10
"""Seconds for a connection."""
ANSWER_S: Final = 60
"""Seconds in which no byte of an answer arrives."""


def is_rest(name: str, options: dict[str, Any]) -> bool:
    """Return True if the options of a catalogue are for one of the REST protocol."""
    if "py-catalog-impl" in options:
        return False
    kind = options.get("type")
    return kind.lower() == CatalogType.REST.value if isinstance(kind, str) else (
        infer_catalog_type(name, options) is CatalogType.REST)


@final
class TimedRestCatalog(RestCatalog):
    """A catalogue whose requests raise ``requests.Timeout`` if the server is silent."""

    def _config_headers(self, session: Session) -> None:
        # PyIceberg calls this first with each new session, before it asks for a token.
        session.request = partial(session.request, timeout=(CONNECT_S, ANSWER_S))  # type: ignore[method-assign]
        super()._config_headers(session)
