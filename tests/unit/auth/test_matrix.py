"""The verdicts on requests of every code are those of a Java broker with the same users and permissions.

`tests/support/access_matrix.py` asked a Java broker 5.5.0 and wrote the table; it is also the command that makes it
again. `tests/interop/test_access.py` compares servers over the wire.
"""

import access_matrix
import pytest

from tailrace.auth.check import AccessControl
from tailrace.auth.model import User, acl_of
from tailrace.auth.signature import sign
from tailrace.auth_settings import AuthConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand
from tailrace.formats.requests.table import REQUESTS, Role
from tailrace.testing import SimClock

JAVA = access_matrix.recorded()
OPEN = {code.name for code, row in REQUESTS.items() if not row.reference and row.role is not Role.CLIENT}
"""Requests that a Java broker serves for every user."""
REQUESTS_SENT = access_matrix.requests()
NEWER = {"DELETE_TOPIC_IN_BROKER_LIST", "DELETE_SUBSCRIPTION_GROUP_LIST"}
"""Requests that came with 5.5.1, which the Java broker did not know."""
OWN = {
    "SYNC_STORE", "GET_SLAVE_STATE", "GET_SLAVE_USERS", "GET_TIMER_CHECK_POINT", "GET_TIMER_METRICS",
    "EXCHANGE_BROKER_HA_INFO"}
"""Requests that were added after the table was recorded: three of Tailrace, and those of replication."""


class Peer:
    peer_ip = "127.0.0.1"
    authenticated = False
    user = ""

    def __init__(self):
        self.users = {}
        self.proof = None


@pytest.fixture(scope="module")
def control():
    root = access_matrix.ROOT
    users = {root.access_key: User(root.access_key, root.secret_key, is_super=True)}
    acls = {}
    for name, policies in access_matrix.PERMISSIONS.items():
        users[name] = User(name, f"password of {name}")
        if policies:
            acls[name] = acl_of({"subject": f"User:{name}", "policies": policies})
    users["off"] = User("off", "password of off", enabled=False)
    config = AuthConfig.from_properties({**access_matrix.settings(), "authenticationFailuresMax": "0"})
    return AccessControl(SimClock(), config, access_matrix.CLUSTER, users.get, acls.get)


def verdict(control, caller, name):
    code, ext, body = REQUESTS_SENT[name]
    if credentials := access_matrix.CALLERS[caller]:
        ext = sign(ext, body, credentials, MQ_VERSION)
    try:
        control.check(Peer(), RemotingCommand(code, ext, body))
    except RefusalError as refusal:
        assert refusal.code == 16
        return refusal.remark
    return ""


def test_the_table_has_every_request_and_caller():
    assert JAVA["root"].keys() | NEWER | OWN == REQUESTS_SENT.keys()
    assert {name.split()[0] for name in REQUESTS_SENT} == {
        code.name for code, row in REQUESTS.items() if row.role is not Role.CLIENT}


@pytest.mark.parametrize("caller", access_matrix.CALLERS)
def test_verdicts_are_those_of_java(control, caller):
    checked = {
        name: access_matrix.as_here(remark) for name, remark in JAVA[caller].items() if name.split()[0] not in OPEN}
    assert {name: verdict(control, caller, name) for name in checked} == checked


@pytest.mark.parametrize("name", sorted(NEWER))
def test_lists_of_names_need_the_permission_for_each_name(control, name):
    """As the request for one name, which the Java broker checks."""
    single = {"DELETE_TOPIC_IN_BROKER_LIST": "DELETE_TOPIC_IN_BROKER",
              "DELETE_SUBSCRIPTION_GROUP_LIST": "DELETE_SUBSCRIPTIONGROUP"}[name]
    for caller in access_matrix.CALLERS:
        assert verdict(control, caller, name) == access_matrix.as_here(JAVA[caller][single]), caller


@pytest.mark.parametrize("caller", access_matrix.PERMISSIONS)
def test_what_java_leaves_open_to_every_user_needs_a_permission(control, caller):
    for name in JAVA[caller]:
        if name.split()[0] in OPEN:
            assert not JAVA[caller][name], "the reference checks it: say so in the table of requests"
            if caller in {"nothing", "elsewhere", "other", "denied"}:
                assert "has no permission to access" in verdict(control, caller, name), name
            elif not caller.startswith("may-") and caller not in {"topics", "groups", "clusters"}:
                assert not verdict(control, caller, name), name
