"""The declaration of one kind of log line."""

from __future__ import annotations

import logging
import re
from typing import Final, NamedTuple

_KEY: Final = re.compile(r"(?:^| )([a-z_]+)=")
_LEVELS: Final = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}


class Event(NamedTuple):
    """One kind of line."""

    level: str
    """Name of the level: debug, info, warning, error, critical."""
    phrase: str
    """Fixed text at the start of the line."""
    keys: tuple[str, ...]
    """Names of the values that follow it."""
    meaning: str
    """What happened and what follows, in a sentence or two, as Markdown."""
    do: str
    """What an operator should do, as Markdown; empty for lines that need no action."""

    def log(self, logger: logging.Logger, *, exc_info: bool | BaseException = False, **values: object) -> None:
        """Write the line. There is a value for each key, in their order; ``from_`` stands for the key ``from``.

        ``exc_info`` adds the traceback of that exception, or of the one that is being handled.
        """
        text = " ".join([self.phrase, *(f"{key}=%s" for key in self.keys)])
        logger.log(_LEVELS[self.level], text, *values.values(), exc_info=exc_info, stacklevel=2)


def event(level: str, phrase: str, keys: str, meaning: str, *, do: str = "") -> Event:
    """Return a declaration; ``keys`` has the names with a space between them."""
    return Event(level, phrase, tuple(keys.split()), meaning, do)


def split_line(text: str) -> tuple[str, tuple[str, ...]]:
    """Return phrase and keys of a line."""
    first = _KEY.search(text)
    return (text, ()) if first is None else (text[: first.start()], tuple(_KEY.findall(text)))
