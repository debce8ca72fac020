"""Creation and changes of a consumer group, in a directory or through a running broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.cli.admin import ask, server_of
from tailrace.cli.contexts import Target
from tailrace.cli.messages import opened_or_made
from tailrace.client.admin import AdminClient
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import StoreError, StoreLockedError
from tailrace.node.subscription_group import (
    SubscriptionGroupConfig,
    SubscriptionGroupManager,
    merged_group_attributes,
    validate_group,
)

__all__ = ["save_group"]


def save_group(
    name: str, target: Target, changes: dict[str, Any], attributes: dict[str, str], *, create: bool
) -> dict[str, Any]:
    """Create a group, or change these members and attributes of it; return all members. Raises StoreError."""
    if reason := validate_group(name):
        raise StoreError(reason)
    if target.store:
        try:
            with opened_or_made(target.store, create=create) as opened:
                groups = SubscriptionGroupManager(
                    OsFileSystem(), opened.config_dir, BrokerConfig(), SystemClock())
                groups.load()
                present = {one.group_name: one.to_json() for one in groups.items()}
                made = SubscriptionGroupConfig.from_json(_changed(name, present, changes, attributes))
                groups.update_all([made])
                return made.to_json()
        except StoreLockedError as error:
            target = Target(broker=server_of(target.store, error), tls=target.tls)

    async def save(admin: AdminClient) -> dict[str, Any]:
        made = _changed(name, await admin.group_configs(), changes, attributes)
        # A broker takes changes of attributes, not all of them.
        await admin.save_group({**made, "attributes": {f"+{key}": value for key, value in attributes.items()}})
        return made

    return ask(target, save)


def _changed(
    name: str, present: dict[str, dict[str, Any]], changes: dict[str, Any], attributes: dict[str, str]
) -> dict[str, Any]:
    """Return the members of a group after the changes. Raises StoreError for an attribute that does not exist."""
    before = SubscriptionGroupConfig.from_json(present.get(name, {}), name)
    try:
        merged = merged_group_attributes(
            before.attributes, {f"+{key}": value for key, value in attributes.items()}, creating=name not in present)
    except ValueError as error:
        raise StoreError(str(error)) from None
    return {**replace(before, attributes=merged).to_json(), **changes}
