"""Headers of requests about users and their permissions (access control 2.0)."""

from __future__ import annotations

from tailrace.formats.requests.custom_header import CustomHeader

__all__ = [
    "AclRequestHeader", "DeleteAclRequestHeader", "ListAclsRequestHeader", "ListUsersRequestHeader",
    "UserRequestHeader",
]


class UserRequestHeader(CustomHeader):
    """Requests 3001 to 3004. The body of 3001 and 3002 has the values of the user."""

    username: str = ""


class ListUsersRequestHeader(CustomHeader):
    """Request 3005: users whose name contains a text."""

    filter: str = ""


class AclRequestHeader(CustomHeader):
    """Requests 3006, 3007 and 3009; the subject is ``User:name``. The body of 3006 and 3007 has the entries."""

    subject: str = ""


class DeleteAclRequestHeader(CustomHeader):
    """Request 3008: one resource of a policy, or without a resource all entries of a subject."""

    subject: str = ""
    policy_type: str = ""
    resource: str = ""


class ListAclsRequestHeader(CustomHeader):
    """Request 3010: entries whose subject and resource contain a text."""

    subject_filter: str = ""
    resource_filter: str = ""
