"""What a user who is not a super user may give to others: no more than that user may do.

The rule needs one entry of the user that allows an action on the whole resource and for all addresses that are given,
and no entry that denies the action on a part of the resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tailrace.auth.model import Acl, Entry, Resource
from tailrace.formats.requests.table import Action

__all__ = ["GIFTS_MAX", "given_by", "may_give"]

GIFTS_MAX: Final = 100
"""Entries that one request may give, because each is compared with all entries of its user."""


def may_give(acl: Acl | None, entry: Entry) -> bool:
    """Return whether a user with these entries may do everything that an entry names."""
    mine = () if acl is None else (*acl.custom, *acl.default)
    return all(
        any(_covers(one, entry) for one in mine if one.allow and one.mask & action)
        and not any(_overlap(one.resource, entry.resource) for one in mine if not one.allow and one.mask & action)
        for action in Action if action & entry.mask)


def given_by(before: Acl | None, after: Acl | None) -> Iterator[Entry]:
    """Yield the entries that a change gives to a user: new ones that allow, and removed ones that denied."""
    for policy in ("custom", "default"):
        old, new = (frozenset(() if acl is None else getattr(acl, policy)) for acl in (before, after))
        yield from (entry for entry in new - old if entry.allow)
        yield from (entry for entry in old - new if not entry.allow)


def _covers(outer: Entry, inner: Entry) -> bool:
    if not _includes(outer.resource, inner.resource):
        return False
    return not outer.source_ips or (bool(inner.source_ips) and all(
        one in outer.source_ips or ("/" not in one and outer.addresses.has(one)) for one in inner.source_ips))


def _includes(outer: Resource, inner: Resource) -> bool:
    """Return whether every name of ``inner`` is one of ``outer``."""
    if not outer.kind:
        return True
    if outer.kind != inner.kind:
        return False
    return inner.name.startswith(outer.name) if outer.prefixed else outer == inner


def _overlap(one: Resource, other: Resource) -> bool:
    """Return whether a name may belong to both."""
    if not one.kind or not other.kind:
        return True
    return _includes(one, other) or _includes(other, one)
