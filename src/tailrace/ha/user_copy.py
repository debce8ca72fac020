"""Copy of a master's users and their permissions to its slave, between two Tailrace brokers (request 329005).

A client must have the same permissions after a promotion. The answer has passwords, which are the keys of signatures.
So two things are needed, and neither replaces the other:

- a signature of a super user with a binding, because the master must know the sender, and a recorded request must be
  of no use to others;
- TLS, or a connection inside the machine, because a signature does not hide the answer.

The slave does not even ask without TLS. The tables of the master replace those of the slave: a user that exists only at
the slave is removed. A master without authentication, and one of RocketMQ, sends none; then those of the slave stay.
"""

from __future__ import annotations

from typing import Final, Protocol

from tailrace.auth.addresses import parsed_address
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.ha.slave_comparison import Run
from tailrace.node.access import AclManager, UserManager
from tailrace.remoting.client import RemotingClient, split_address

__all__ = ["COPIED", "AccessTables", "copy_users", "is_inside_machine"]

_TIMEOUT_MS: Final = 30_000
_SENDS_NONE: Final = (
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER)
COPIED: Final = "copied from the master"
"""The state of a slave whose users are those of its master."""


class AccessTables(Protocol):
    """Users and permissions of a slave."""

    users: UserManager
    acls: AclManager
    are_copied: bool
    """Whether they are those of the master."""


def is_inside_machine(host: str) -> bool:
    """Return whether a host is an address of this machine that no network carries (loopback)."""
    try:
        return parsed_address(host).is_loopback
    except ValueError:
        return False


async def copy_users(client: RemotingClient, address: str, tables: AccessTables, run: Run) -> str:
    """Replace users and permissions by those of the master at ``address``. Return `COPIED`, or why not.

    Raises RemotingError, OSError or StoreError if the master or the disk fails; then the next copy tries again.
    """
    place = split_address(address)
    if not client.signs:
        return "innerClientAuthenticationCredentials is not set here"
    if not client.uses_tls and not (place and is_inside_machine(place[0])):
        return "passwords are copied over TLS only: set tls.client.enable=true here, and a certificate at the master"
    answer = await client.ask(
        address, RequestCode.GET_SLAVE_USERS, ok=(ResponseCode.SUCCESS, *_SENDS_NONE), timeout_ms=_TIMEOUT_MS)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return "a master of RocketMQ does not send them"
    if answer.code in _SENDS_NONE:
        return answer.remark or f"code {answer.code}"
    found = fastjson.loads(answer.body)
    if not isinstance(found, dict):
        raise TypeError("the users are not an object")
    acls, users = ({name: found[name]} for name in (AclManager.member, UserManager.member))

    tables.acls.check_copy(acls)
    tables.users.check_copy(users)

    def take() -> None:
        # Permissions first: in between, a user has no more than at the master before or after.
        tables.acls.copy_from(acls)
        tables.users.copy_from(users)

    await run(take)
    return COPIED
