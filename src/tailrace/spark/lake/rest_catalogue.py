"""PyIceberg's catalogue of the REST protocol, whose requests end: PyIceberg itself waits for an answer for ever."""

from __future__ import annotations

from functools import partial
from typing import final

import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.rest.auth import OAuth2AuthManager, OAuth2TokenProvider
from requests import Session

from tailrace.env.clock import SystemClock
from tailrace.spark.lake import client_times as times

__all__ = ["TimedRestCatalog"]


@final
class _TimedTokens(OAuth2TokenProvider):
    """Tokens of ``auth.type: oauth2``, asked for as in RFC 6749, section 4.4."""

    def _refresh_token(self) -> None:
        scope = {"scope": self.scope} if self.scope else {}
        answer = requests.post(
            self.token_url, data={"grant_type": "client_credentials", **scope},
            headers={"Authorization": self._client_secret_header}, timeout=(times.CONNECT_S, times.ANSWER_S))
        answer.raise_for_status()
        found = answer.json()
        lifetime = found.get("expires_in", self.expires_in)
        if "access_token" not in found or lifetime is None:
            raise ValueError(
                f"the answer of {self.token_url} has no "
                f"{'access_token' if lifetime is not None else 'expires_in, which the configuration may have'}")
        self._token = found["access_token"]
        self._expires_at = SystemClock().monotonic_ns() // 1_000_000_000 + lifetime - self.refresh_margin


@final
class TimedRestCatalog(RestCatalog):
    """A catalogue whose requests raise ``requests.Timeout`` if the server, or that of its tokens, is silent."""

    def _create_session(self) -> Session:
        made = super()._create_session()
        manager = self._auth_manager
        if isinstance(manager, OAuth2AuthManager):
            own = manager.token_provider
            manager.token_provider = _TimedTokens(
                own.client_id, own.client_secret, own.token_url, own.scope, own.refresh_margin, own.expires_in)
        return made

    def _config_headers(self, session: Session) -> None:
        # PyIceberg calls this first with each new session, before it asks for a token.
        session.request = partial(session.request, timeout=(times.CONNECT_S, times.ANSWER_S))  # type: ignore[method-assign]
        super()._config_headers(session)
