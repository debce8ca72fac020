"""Names of options that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.spellings import meant

__all__ = ["unknown_options"]


def unknown_options(given: Iterable[str], known: Sequence[str], silent: Iterable[str] = ()) -> list[str]:
    """Return a problem for each option that is not known, with the most similar name, and then the list of names.

    Upper and lower case does not matter. ``silent`` are options, in lower case, that are accepted and not listed.
    """
    lower = {name.lower() for name in known} | set(silent)
    problems = [f"unknown option {name}{meant(name, known)}" for name in sorted(given) if name.lower() not in lower]
    return problems and [*problems, f"known options are {', '.join(sorted(known, key=str.lower))}"]
