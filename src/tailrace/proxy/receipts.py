"""Receipt handles: what a client says of a message that it has received (ReceiptHandle).

The form is RocketMQ's: the eight fields of a POP receipt and the position of the message in the log, separated
by blanks. The position lets a message become a dead letter without a search.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.formats.pop import ExtraInfo
from tailrace.proxy.protocol import Code, GrpcError

__all__ = ["ReceiptHandle"]

_HANDLE_MAX = 1_024


class ReceiptHandle(NamedTuple):
    """A receipt with the position of its message in the log; -1 if that is not known."""

    receipt: ExtraInfo
    phy_offset: int

    def encode(self) -> str:
        """Return the text that clients keep."""
        return f"{self.receipt.encode()} {self.phy_offset}"

    @classmethod
    def decode(cls, text: str, broker_name: str) -> ReceiptHandle:
        """Read a handle of this broker. Raises GrpcError (INVALID_RECEIPT_HANDLE)."""
        parts = text[:_HANDLE_MAX].split(" ")
        try:
            if len(parts) < 8 or len(text) > _HANDLE_MAX:
                raise ValueError(f"it has {len(parts)} fields, 8 or more are needed")
            receipt = ExtraInfo.decode(" ".join(parts[:8]))
            # A changed handle of RocketMQ's proxy has one field more: the position comes last.
            phy_offset = int(parts[-1]) if len(parts) > 8 and parts[-1].isdecimal() and len(parts[-1]) < 19 else -1
        except ValueError as error:
            raise GrpcError(Code.INVALID_RECEIPT_HANDLE, f"receipt_handle cannot be read: {error}") from None
        if receipt.broker_name != broker_name:
            raise GrpcError(
                Code.INVALID_RECEIPT_HANDLE, f"receipt_handle is of broker {receipt.broker_name}, not {broker_name}")
        return cls(receipt, phy_offset)

    def check_time(self, now_ms: int) -> None:
        """Raise GrpcError (INVALID_RECEIPT_HANDLE) if the message may have been delivered again."""
        if self.receipt.pop_time + self.receipt.invisible_time <= now_ms:
            raise GrpcError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
