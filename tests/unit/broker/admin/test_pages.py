"""Pages of topics and groups: a client that counts as a Java slave does gets every entry."""

import json

import pytest

from tailrace.broker.admin.shapes import page_of

VERSION = {"counter": 3, "stateVersion": 0, "timestamp": 17}


def java_client(table, most, version=VERSION):
    """How BrokerOuterAPI#getAllTopicConfig reads pages."""
    found, first, known = {}, 0, "{}"
    while True:
        page = page_of(table, first, most, known, version)
        found |= page
        first, known = first + len(page), json.dumps(version)
        if first >= len(table) - 1:
            return found


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 6, 10, 11, 12, 21])
def test_a_java_slave_gets_every_entry(count):
    table = {f"t{number:03}": number for number in range(count)}
    assert java_client(table, 5) == table


def test_pages_are_sorted_and_start_again_after_a_change():
    table = dict.fromkeys("edcba", 1)
    known = json.dumps(VERSION)
    assert list(page_of(table, 0, 2, "{}", VERSION)) == ["a", "b"]
    assert list(page_of(table, 2, 2, known, VERSION)) == ["c", "d", "e"]
    assert list(page_of(table, 2, 2, json.dumps({**VERSION, "counter": 2}), VERSION)) == ["a", "b"]
    assert list(page_of(table, 2, 2, "no json", VERSION)) == ["a", "b"]


def test_old_clients_that_send_no_number_get_everything():
    table = dict.fromkeys("edcba", 1)
    assert page_of(table, None, None, None, VERSION) == table
    assert page_of(table, 0, None, None, VERSION) == table
