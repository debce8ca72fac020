"""Request bodies in JSON."""

from __future__ import annotations

from typing import Any

from tailrace.errors import MessageIllegalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand


def json_object(request: RemotingCommand) -> dict[str, Any]:
    """The object in a request's body; raises MessageIllegalError when it is none."""
    try:
        value = fastjson.loads(request.body)
    except ValueError as error:
        raise MessageIllegalError("body", f"of request {request.code} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MessageIllegalError("body", f"of request {request.code} is no JSON object")
    return value
