"""Requests of admin tools about consumer groups (AdminBrokerProcessor): 200, 201, 207, 225, 352 and 5003."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, final

from tailrace.broker.admin.shapes import page_of, unreadable_by_java
from tailrace.broker.admin.topics import LIST_MAX
from tailrace.broker.core.creations import Creations
from tailrace.broker.core.deletion import BrokerState, deleted_answer
from tailrace.errors import RefusalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.formats.requests.consumer_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
)
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import (
    SubscriptionGroupConfig,
    SubscriptionGroupManager,
    is_group_of_broker,
    merged_group_attributes,
    validate_group,
)
from tailrace.remoting import Channel
from tailrace.requests.bodies import json_object, objects_in, texts_in
from tailrace.requests.config_changes import Change, ConfigChanges, creates_missing
from tailrace.requests.processor import RequestProcessor, serves
from tailrace.requests.reply import Answer, Reply, in_turns
from tailrace.requests.worker import RequestWorker

__all__ = ["GroupsProcessor"]


@final
class GroupsProcessor(RequestProcessor):
    """Creates, changes, returns and deletes consumer groups."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, store: MessageStore, changes: ConfigChanges, worker: RequestWorker,
        creations: Creations, groups: SubscriptionGroupManager, state: BrokerState,
    ) -> None:
        self._loop, self._store, self.changes, self._worker = loop, store, changes, worker
        self._creations, self._groups, self._state = creations, groups, state

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, writes=True)
    def update_group(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change a group: request 200."""
        return self._update_groups(channel, request, [json_object(request)])

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, writes=True)
    def update_groups(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Create or change several groups: request 225. Either all of them change or none."""
        values = objects_in(json_object(request), "groupConfigList", LIST_MAX)
        return self._update_groups(channel, request, values)

    def _update_groups(
        self, channel: Channel, request: RemotingCommand, values: list[dict[str, Any]]
    ) -> Answer:
        groups, configs = self._groups, list[SubscriptionGroupConfig]()

        def check(value: dict[str, Any]) -> None:
            config = SubscriptionGroupConfig.from_json(value)
            if reason := validate_group(config.group_name) or unreadable_by_java(config):
                raise RefusalError(ResponseCode.INVALID_PARAMETER, reason)
            if groups.is_lmq(config.group_name):  # RocketMQ ignores the change
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER,
                    f"The group[{config.group_name}] is an LMQ group: it exists without a config.")
            try:
                _merged_group(config, groups.select(config.group_name))
            except ValueError as error:
                raise RefusalError(
                    ResponseCode.SYSTEM_ERROR, f"{config.group_name}: {error}") from error
            configs.append(config)

        def apply() -> Answer:
            change = Change(groups, lambda draft: groups.put_all(
                draft, [_merged_group(config, draft.get(config.group_name)) for config in configs]),
                creates=[config.group_name for config in configs])
            return self.changes.apply(channel, request, [change], request.answer)

        return in_turns(self._loop, partial(Reply, channel, request), map(check, values), apply)

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, in_thread=True)
    def all_groups(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return all groups, or a page of them: request 201."""
        header, found = request.read(GetAllSubscriptionGroupRequestHeader), self._groups.to_json()
        table = found["subscriptionGroupTable"]
        page = page_of(table, header.group_seq, header.max_group_num, header.data_version, found["dataVersion"])
        return request.answer(
            ext={"totalGroupNum": str(len(table))},
            body=fastjson.dumps_large({**found, "subscriptionGroupTable": page}))

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    @creates_missing
    def group(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Return a group: request 352. A missing group is created if that is allowed."""
        name = request.read(GetSubscriptionGroupConfigRequestHeader).group
        config = self._creations.group(name)
        if config is None:
            raise RefusalError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name}",
            )
        return request.answer(body=fastjson.dumps(config.to_json()))

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP, writes=True)
    def delete_group(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete a group with its retry topics and dead letters: request 207.

        With ``cleanOffset``, or if it is a Lite group, its offsets are deleted as well.
        """
        header = request.read(DeleteSubscriptionGroupRequestHeader)
        return self._delete_groups(channel, request, [header.group_name], clean=header.clean_offset)

    @serves(RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, writes=True)
    def delete_groups(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Delete several groups as request 207 does: request 5003. Either all of them are deleted or none."""
        body = json_object(request) if request.body else {}
        names = texts_in(body, "groupNameList", LIST_MAX)
        if not names:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The specified group name list is blank.")
        if not all(name.strip() for name in names):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "The specified group name is blank.")
        return self._delete_groups(channel, request, names, clean=body.get("cleanOffset") is True)

    def _delete_groups(
        self, channel: Channel, request: RemotingCommand, names: list[str], *, clean: bool
    ) -> Answer:
        groups = dict.fromkeys(names)
        for name in groups:
            if is_group_of_broker(name):
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER, f"The group[{name}] is one of the broker: it cannot be deleted.")

        def delete(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            configs = {name: self._groups.select(name) for name in groups}
            kept = [name for name, config in configs.items() if not (
                clean or (config is not None and config.lite_bind_topic))]
            done = self._state.delete_groups(set(groups), offsets=groups.keys() - set(kept))
            return deleted_answer(
                request, done, f"the offsets of {', '.join(kept)}, because cleanOffset is false" if kept else "")

        return self._worker.in_thread(delete)(channel, request)


def _merged_group(
    config: SubscriptionGroupConfig, present: SubscriptionGroupConfig | None
) -> SubscriptionGroupConfig:
    """Return a group after its changes of attributes. Raises ValueError if a change is invalid."""
    return replace(config, attributes=merged_group_attributes(
        present.attributes if present else {}, config.attributes, creating=present is None))
