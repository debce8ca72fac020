"""Users and entries in JSON: what is read, what is refused, and how entries are merged."""

import pytest

from tailrace.auth.model import (
    Acl,
    Entry,
    Resource,
    User,
    acl_of,
    entry_of,
    resource_of,
    subject_name,
    user_of,
)
from tailrace.errors import ConfigError

ENTRY = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}


def acl(*entries, kind="Custom"):
    return {"subject": "User:ann", "policies": [{"policyType": kind, "entries": [*entries]}]}


@pytest.mark.parametrize(("text", "resource"), [
    ("*", Resource("")), ("Topic:orders", Resource("Topic", "orders")), ("topic:orders", Resource("Topic", "orders")),
    ("Group:g*", Resource("Group", "g", prefixed=True)), ("Cluster:*", Resource("Cluster", "", prefixed=True)),
    ("Namespace:n", Resource("Namespace", "n")), ("Topic:a:b", Resource("Topic", "a:b")),
])
def test_resources(text, resource):
    assert resource_of(text) == resource
    assert resource_of(resource.key) == resource


@pytest.mark.parametrize(("change", "part"), [
    ({"resource": ""}, "The resource is null."), ({"resource": None}, "The resource is null."),
    ({"resource": 5}, "not text"), ({"resource": "Topic"}, "has no name"), ({"resource": "Topic:"}, "has no name"),
    ({"resource": "Queue:x"}, "resource type 'Queue' is not one of"), ({"resource": "Topic:a*b"}, "not its last"),
    ({"resource": "Topic:a**"}, "not its last"), ({"resource": "Any:x"}, "resource type"),
    ({"actions": []}, "The actions is empty."), ({"actions": None}, "The actions is empty."),
    ({"actions": ["Any"]}, "can not be Any"), ({"actions": ["Pubb"]}, "'Pubb' is not one of All"),
    ({"actions": "Pub"}, "not a list"), ({"actions": [1]}, "not a list"),
    ({"decision": None}, "The decision is null or illegal."), ({"decision": "Maybe"}, "'Maybe' is not one of"),
    ({"sourceIps": [" "]}, "The source ip is empty."), ({"sourceIps": ["10.0.0.300"]}, "The source ip is invalid."),
    ({"sourceIps": ["10.0.0.0/33"]}, "invalid"), ({"sourceIps": ["::/129"]}, "invalid"),
    ({"sourceIps": ["localhost"]}, "invalid"), ({"sourceIps": ["10.0.0.0/8/8"]}, "invalid"),
    ({"sourceIps": ["10.*.*.*"]}, "invalid"), ({"sourceIps": "10.0.0.1"}, "not a list"),
])
def test_an_entry_that_cannot_be_honoured_is_refused(change, part):
    with pytest.raises(ConfigError, match=r".") as caught:
        entry_of({**ENTRY, **change})
    assert part in str(caught.value)


@pytest.mark.parametrize(("value", "part"), [
    ({}, "The subject is null."), ({"subject": "Role:x"}, "not User:NAME"), ({"subject": "User:"}, "blank"),
    ({"subject": "User:a b"}, "has a blank"), ({"subject": "User:ann"}, "The policies is empty."),
    ({"subject": "User:ann", "policies": [5]}, "not an object"),
    ({"subject": "User:ann", "policies": [{}]}, "The policy entries is empty."),
    ({"subject": "User:ann", "policies": [{"policyType": "Other", "entries": [ENTRY]}]}, "policy type 'Other'"),
    ({"subject": "User:ann", "policies": [{"entries": [5]}]}, "An entry is not an object."),
])
def test_permissions_with_an_error_are_refused(value, part):
    with pytest.raises(ConfigError) as caught:
        acl_of(value)
    assert part in str(caught.value)


def test_permissions_are_written_as_they_are_read():
    value = acl({**ENTRY, "sourceIps": ["10.0.0.0/8", "::1"]}, {**ENTRY, "resource": "*", "decision": "Deny"})
    assert acl_of(value).to_json() == value
    assert acl_of({"policies": value["policies"]}, "User:ann").to_json() == value
    assert acl_of(acl(ENTRY, kind=None)).custom == acl_of(acl(ENTRY)).custom


def test_an_entry_of_the_same_resource_and_policy_is_replaced():
    first = acl_of(acl(ENTRY, {**ENTRY, "resource": "Topic:b"}))
    merged = first.updated(acl_of(acl({**ENTRY, "actions": ["Sub"]}))).updated(acl_of(acl(ENTRY, kind="Default")))
    assert [(e.resource.key, e.actions) for e in merged.custom] == [("Topic:orders", ("Sub",)), ("Topic:b", ("Pub",))]
    assert [e.resource.key for e in merged.default] == ["Topic:orders"]
    assert merged.without("Custom", resource_of("Topic:b")).without("Custom", resource_of("Topic:orders")).custom == ()
    assert not Acl("ann")


@pytest.mark.parametrize(("value", "part"), [
    ({}, "username can not be blank"), ({"username": " "}, "blank"), ({"username": "a b", "password": "x"}, "a blank"),
    ({"username": "a#b", "password": "x"}, "`#`"), ({"username": "a" * 256, "password": "x"}, "too long"),
    ({"username": "a"}, "password can not be blank"), ({"username": "a", "password": ["x"]}, "password is not text"),
    ({"username": "a", "password": "x", "userType": "King"}, "user type 'King'"),
    ({"username": "a", "password": "x", "userStatus": "asleep"}, "user status 'asleep'"),
])
def test_a_user_with_an_error_is_refused(value, part):
    with pytest.raises(ConfigError) as caught:
        user_of(value)
    assert part in str(caught.value)


def test_what_a_change_of_a_user_leaves_out_stays():
    ann = user_of({"username": "ann", "password": "secret", "userType": "super", "userStatus": "DISABLE"})
    assert (ann.is_super, ann.enabled) == (True, False)
    assert user_of({"username": "ann"}, ann) == ann
    assert user_of({"username": "ann", "userStatus": "enable"}, ann) == User("ann", "secret", is_super=True)
    assert user_of(ann.to_json()) == ann


def test_a_secret_is_in_no_text_of_a_user():
    assert "secret" not in repr(User("ann", "secret"))
    assert str(Entry(resource_of("Topic:a*"), ("Pub",), ("10.0.0.1",), allow=False)) == (
        "Deny Pub on Topic:a* from 10.0.0.1")
    assert subject_name("user:ann") == "ann"
