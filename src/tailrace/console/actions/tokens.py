"""Tokens that tie a confirmation to its user, to what the page said, and to one use."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple, final

from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.formats import fastjson

__all__ = ["LIFETIME_S", "Token", "TokenError", "Tokens"]

LIFETIME_S: Final = 900
"""Seconds that a page may be confirmed."""
USED_MAX: Final = 10_000
"""Used tokens that are remembered. If more were used in `LIFETIME_S`, no further one is taken."""


class TokenError(Exception):
    """A token is not valid; the text says it to the user."""


class Token(NamedTuple):
    """The parts of a token that is valid."""

    number: str
    """Names the confirmation; the job that it starts has the same name."""
    is_used: bool


@final
class Tokens:
    """Makes and checks tokens with a key of this process, so a restart ends all of them."""

    def __init__(self, clock: Clock, entropy: Entropy, key: bytes) -> None:
        """``key`` is secret; numbers of ``entropy`` name tokens."""
        self._clock, self._entropy, self._key = clock, entropy, key
        self._used: dict[str, int] = {}

    def make(self, user: str, action: str, said: Mapping[str, object]) -> str:
        """Return a token with which a user can confirm an action once; ``said`` is what the user sees."""
        number, until = self._entropy.bytes(16).hex(), self._now_s() + LIFETIME_S
        return f"{number}.{until}.{self._digest(number, until, user, action, said)}"

    def check(self, token: str, user: str, action: str, said: Mapping[str, object]) -> Token:
        """Return the parts of a token. Raises TokenError if it is not one of this user, action and content."""
        number, _, rest = token.partition(".")
        until, _, digest = rest.partition(".")
        if not (until.isascii() and until.isdecimal() and len(until) < 16 and digest.isascii()):
            raise TokenError("The form has no valid confirmation.")
        if not hmac.compare_digest(digest, self._digest(number, int(until), user, action, said)):
            raise TokenError("The form is not the one that was shown to you, or the broker was restarted since.")
        if int(until) < self._now_s():
            raise TokenError(f"The page is older than {LIFETIME_S // 60} minutes.")
        return Token(number, number in self._used)

    def use(self, token: Token) -> bool:
        """Note that a token is used; return False if too many were used."""
        now = self._now_s()
        while self._used and next(iter(self._used.values())) < now:
            del self._used[next(iter(self._used))]
        if len(self._used) >= USED_MAX:
            return False
        self._used[token.number] = now + LIFETIME_S
        return True

    def _now_s(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000_000

    def _digest(self, number: str, until: int, user: str, action: str, said: Mapping[str, object]) -> str:
        text = fastjson.dumps([number, until, user, action, sorted(said.items())])
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
