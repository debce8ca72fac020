"""The web page of ``tailrace serve --http``: what a broker has, read-only, without scripts."""

from __future__ import annotations

from tailrace.console.pages import Console

__all__ = ["Console"]
