"""Which entry decides, compared with a plain model; addresses."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.auth.accesses import Access
from tailrace.auth.addresses import Addresses, addresses_problem
from tailrace.auth.check import decide
from tailrace.auth.model import ACTIONS, Acl, Entry, Resource, User
from tailrace.formats.requests.table import Action

NAMES = ("", "a", "ab", "abc", "b")
RESOURCES = st.one_of(
    st.just(Resource("")),
    st.builds(Resource, st.sampled_from(("Topic", "Group")), st.sampled_from(NAMES[1:])),
    st.builds(Resource, st.sampled_from(("Topic", "Group")), st.sampled_from(NAMES), st.just(True)))
ENTRIES = st.builds(
    Entry, RESOURCES, st.lists(st.sampled_from(("All", "Pub", "Sub", "Get")), min_size=1, max_size=3).map(tuple),
    st.sampled_from(((), ("10.0.0.1",), ("10.0.0.0/8", "11.0.0.1"))), st.booleans())
LISTS = st.lists(ENTRIES, max_size=6).map(tuple)
MASKS = {"Pub": Action.PUB, "Sub": Action.SUB, "Get": Action.GET}


def model(custom, default, kind, name, wanted, address):
    """Say in words of the documentation whether it is allowed; by hand, from the least exact to the most exact."""
    for entries in (custom, default):
        verdict = None
        for exactness in ("*", "all", *sorted((n for n in NAMES if n), key=len), "name"):
            deciding = [
                e for e in entries
                if ("All" in e.actions or set(e.actions) & set(wanted))
                and (not e.source_ips or any(
                    ipaddress.ip_address(address) in ipaddress.ip_network(r) for r in e.source_ips))
                and {"*": e.resource.kind == "", "all": e.resource.key == f"{kind}:*",
                     "name": e.resource.key == f"{kind}:{name}"}.get(
                         exactness, e.resource.key == f"{kind}:{exactness}*" and name.startswith(exactness))]
            if deciding:
                verdict = all(e.allow for e in deciding)
        if verdict is not None:
            return verdict
    return False


@given(LISTS, LISTS, st.sampled_from(("Topic", "Group")), st.sampled_from(NAMES[1:]),
       st.lists(st.sampled_from(sorted(MASKS)), min_size=1, max_size=2, unique=True),
       st.sampled_from(("10.0.0.1", "10.9.9.9", "11.0.0.1", "12.0.0.1")))
def test_the_same_entry_decides_as_in_the_model(custom, default, kind, name, wanted, address):
    actions = Action(0)
    for one in wanted:
        actions |= MASKS[one]
    verdict = decide(User("u", "p"), Acl("u", custom, default), Access(kind, name, actions), address)
    assert verdict.allowed == model(custom, default, kind, name, wanted, address)
    assert verdict.entry is None or verdict.entry.allow == verdict.allowed


def test_users_without_entries():
    access = Access("Topic", "t", Action.PUB)
    for user, allowed in ((None, False), (User("u", "p", is_super=True), True), (User("u", "p"), False),
                          (User("u", "p", is_super=True, enabled=False), False)):
        assert decide(user, None, access, "10.0.0.1").allowed == allowed


def test_all_is_every_action():
    assert all(ACTIONS["All"] & action for action in Action)


@pytest.mark.parametrize(("ranges", "address", "there"), [
    ((), "1.2.3.4", True), (("1.2.3.4",), "1.2.3.4", True), (("1.2.3.4",), "1.2.3.5", False),
    (("10.0.0.0/8",), "10.255.255.255", True), (("10.0.0.0/8",), "11.0.0.0", False),
    (("10.1.2.3/8",), "10.255.0.1", True), (("0.0.0.0/0",), "255.255.255.255", True),
    (("1.2.3.4/32",), "1.2.3.4", True),
    (("::1",), "0:0:0:0:0:0:0:1", True), (("0:0:0:0:0:0:0:1",), "::1", True), (("2001:DB8::/32",), "2001:db8::7", True),
    (("2001:db8::/32",), "2001:db9::7", False), (("::ffff:1.2.3.4",), "1.2.3.4", True), (("::1",), "0.0.0.1", False),
    (("::/0",), "1.2.3.4", True), (("0.0.0.0/0",), "2001:db8::7", False), (("10.0.0.0/8",), "", False),
    (("10.0.0.0/8",), "unknown", False),
])
def test_addresses(ranges, address, there):
    assert not addresses_problem(ranges)
    assert Addresses(ranges).has(address) == there
