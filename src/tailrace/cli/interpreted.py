"""A warning if the kernels are not compiled, and the text of ``--version``."""

from __future__ import annotations

import os
import platform

from tailrace import __version__
from tailrace.cli.arguments import complain

__all__ = ["version_text", "warn_if_interpreted"]


def warn_if_interpreted() -> None:
    """Print a warning if the kernels run interpreted, unless ``TAILRACE_INTERPRETED=1`` is set."""
    from tailrace.kernels import compiled  # noqa: PLC0415 - loads all of them

    if not compiled() and os.environ.get("TAILRACE_INTERPRETED") != "1":
        complain("the kernels run interpreted: results are the same, scans take 20 to 100 times as long; this "
                 "installation has none that are compiled for this Python: install a C compiler and the headers of "
                 "Python, then install tailrace again")


def version_text() -> str:
    """Return what ``tailrace --version`` prints."""
    from tailrace.kernels import compiled  # noqa: PLC0415 - loads all of them

    form = "compiled" if compiled() else "interpreted"
    return f"tailrace {__version__} (kernels {form}, {platform.python_implementation()} {platform.python_version()})"
