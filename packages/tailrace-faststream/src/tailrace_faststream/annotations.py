"""Annotations of handler arguments that FastStream fills from its context."""

from __future__ import annotations

from typing import Annotated

from faststream import Context

from tailrace_faststream import message as _message

__all__ = ["RocketmqMessage"]

RocketmqMessage = Annotated[_message.RocketmqMessage, Context("message")]
"""The message of the call, as the type of an argument."""
