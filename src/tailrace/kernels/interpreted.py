"""Stand-in for the module ``cython`` when kernels run interpreted: declarations without effect.

A compiled kernel does not need ``cython``. An interpreted kernel imports this stand-in instead, so Cython (17 MB)
is needed to build Tailrace, not to run it. Interpreted numbers are Python's own and do not overflow; kernels give the
same results both ways.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar, final

__all__ = ["instead_of_cython"]

_Kind = TypeVar("_Kind")


@final
class _Type:
    """A C type such as ``longlong``, ``const[uchar][:]`` or ``uint[4096]``. A call converts to its Python type."""

    def __init__(self, convert: Callable[..., Any], length: int = 0) -> None:
        self._convert, self._length = convert, length

    def __getitem__(self, inner: object) -> _Type:
        """Return an array type for a length; the type itself for a view or a constant."""
        return _Type(self._convert, inner) if isinstance(inner, int) else self

    def __call__(self, *value: object) -> Any:
        """Return a value of the type, zero without an argument."""
        return [self._convert()] * self._length if self._length and not value else self._convert(*value)


def _declare(kind: object = None, *value: object, visibility: str = "") -> Any:
    if isinstance(kind, _Type):
        return kind(*value)
    return value[0] if value else None


def _cast(kind: object, value: Any) -> Any:
    return kind(value) if isinstance(kind, _Type) else value


def _unchanged(decorated: _Kind) -> _Kind:
    return decorated


@final
class _Nogil:
    """Stand-in for ``cython.nogil`` and ``cython.gil``, which are decorators and context managers."""

    def __call__(self, decorated: _Kind) -> _Kind:
        return decorated

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End."""


def _decorator(*_: object, **__: object) -> Callable[[_Kind], _Kind]:
    return _unchanged


def _module() -> ModuleType:
    made = ModuleType("cython", __doc__)
    made.__dict__.update(
        compiled=False, NULL=None, declare=_declare, cast=_cast, exceptval=_decorator, returns=_decorator,
        cclass=_unchanged, cfunc=_unchanged, ccall=_unchanged, inline=_unchanged, nogil=_Nogil(), gil=_Nogil(),
        with_gil=_unchanged, pymutex=threading.Lock, address=_unchanged,
        bint=_Type(bool), void=_Type(int), const=_Type(int))
    for name in ("Py_ssize_t", "int", "uint", "longlong", "ulonglong", "uchar", "size_t", "p_char",
                 "p_uchar", "p_const_char", "p_const_uchar", "p_longlong", "p_Py_ssize_t", "p_void"):
        made.__dict__[name] = _Type(int)
    return made


@contextmanager
def instead_of_cython() -> Iterator[None]:
    """Context in which ``import cython`` returns the stand-in. Afterwards ``sys.modules`` is as before."""
    before = sys.modules.get("cython")
    sys.modules["cython"] = _module()
    try:
        yield
    finally:
        if before is None:
            del sys.modules["cython"]
        else:
            sys.modules["cython"] = before
