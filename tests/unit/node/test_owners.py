"""Every table with a file says which thread may change it."""

from __future__ import annotations

import threading

import pytest

import tailrace.broker.controller
from tailrace.env.owner import ThreadOwner
from tailrace.node.config_manager import ConfigManager, Owned


def subclasses(of):
    for one in of.__subclasses__():
        yield one
        yield from subclasses(one)


def test_every_table_with_a_file_says_who_changes_it():
    assert tailrace.broker.controller
    found = {one.__name__: getattr(one, "owned", None) for one in subclasses(ConfigManager)
             if one.__module__.startswith("tailrace.")}
    assert {name for name, owned in found.items() if not isinstance(owned, Owned)} == set()
    assert {name for name, owned in found.items() if owned is Owned.BY_ONE_THREAD} == {
        "ConsumerOrderInfoManager", "ConsumerFilterManager"}
    assert len(found) >= 12


def test_an_owner_is_the_thread_that_made_it():
    owner = ThreadOwner("the table")
    owner.check()
    raised = []

    def other():
        try:
            owner.check()
        except AssertionError as error:
            raised.append(str(error))

    thread = threading.Thread(target=other, name="writer")
    thread.start()
    thread.join()
    assert raised == ["the table belongs to another thread, writer must not use it"]


def test_a_table_of_one_thread_refuses_another_one():
    class Table(ConfigManager):
        owned = Owned.BY_ONE_THREAD

        def _decode(self, value):
            pass

        def _encode(self, table):
            return {}

    made = []
    thread = threading.Thread(target=lambda: made.append(Table(None, "d", "n.json")))
    thread.start()
    thread.join()
    with pytest.raises(AssertionError, match=r"Table \(n.json\) belongs to another thread"):
        made[0].prepare()
