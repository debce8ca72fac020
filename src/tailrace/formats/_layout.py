"""Declare records of fixed size once, as a NamedTuple.

Each field is annotated with a struct code, a NumPy code and a sentence. The struct, the dtype, the field offsets
and the table in the documentation are made from that. RocketMQ writes all numbers big-endian.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_type_hints

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Layout"]

_R = TypeVar("_R", bound=tuple[Any, ...])


class _Field(NamedTuple):
    struct_code: str
    numpy_code: str
    about: str


class Layout(Generic[_R]):
    """One fixed-size record of ``size`` bytes.

    Field annotations are ``Annotated[int, struct_code, numpy_code, sentence]``. The import fails if struct,
    dtype and the declared size are not equal.
    """

    def __init__(self, record: type[_R], *, size: int) -> None:
        hints = get_type_hints(record, include_extras=True)
        self.fields: Final = {name: _Field(*get_args(hint)[1:]) for name, hint in hints.items()}
        self.record: Final = record
        self.size: Final = size
        self.struct: Final = struct.Struct(">" + "".join(f.struct_code for f in self.fields.values()))
        offsets, at = {}, 0
        for name, f in self.fields.items():
            offsets[name] = at
            at += struct.calcsize(">" + f.struct_code)
        self.offsets: Final[dict[str, int]] = offsets
        if not self.struct.size == at == size:
            raise AssertionError(f"{record.__name__} has {self.struct.size} bytes, not {size}")

    @functools.cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The record as a NumPy structured type."""
        import numpy as np  # noqa: PLC0415 - most users of formats never need arrays

        made = np.dtype([(name, ">" + f.numpy_code) for name, f in self.fields.items()])
        if made.itemsize != self.size:
            raise AssertionError(f"{self.record.__name__} is {made.itemsize} bytes as a dtype")
        return made

    def pack(self, *values: int) -> bytes:
        """Return the bytes of a record."""
        return self.struct.pack(*values)

    def pack_into(self, buffer: bytearray | memoryview, offset: int, record: _R) -> None:
        """Write a record at ``offset``."""
        self.struct.pack_into(buffer, offset, *record)

    def unpack_from(self, buffer: bytes | bytearray | memoryview, offset: int = 0) -> _R:
        """Return the record at ``offset``."""
        return self.record._make(self.struct.unpack_from(buffer, offset))  # type: ignore[attr-defined]

    def view(self, buffer: bytes | bytearray | memoryview, count: int = -1) -> NDArray[np.void]:
        """Return ``count`` records (-1: all) as an array over the same bytes."""
        import numpy as np  # noqa: PLC0415 - see dtype

        return np.frombuffer(buffer, self.dtype, count)

    def markdown(self) -> Iterator[str]:
        """Yield the lines of the documentation table."""
        yield "| offset | bytes | field | meaning |"
        yield "|---:|---:|---|---|"
        for name, offset in self.offsets.items():
            f = self.fields[name]
            yield f"| {offset} | {struct.calcsize('>' + f.struct_code)} | `{name}` | {f.about} |"
