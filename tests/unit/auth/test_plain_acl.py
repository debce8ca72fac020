"""Users and permissions of 4.x as those of 2.0."""

import pytest

from tailrace.auth.plain_acl import from_plain_acl
from tailrace.errors import ConfigError

FILE = {
    "globalWhiteRemoteAddresses": ["10.10.103.*"],
    "accounts": [
        {"accessKey": "RocketMQ", "secretKey": "12345678", "whiteRemoteAddress": "192.168.0.*", "admin": False,
         "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB",
         "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB"],
         "groupPerms": ["groupA=DENY", "groupB=PUB|SUB"]},
        {"accessKey": "rocketmq2", "secretKey": "12345678", "admin": True, "topicPerms": ["x=PUB"]},
        {"accessKey": "third", "secretKey": "12345678"}]}


def test_accounts_become_users_and_entries_as_the_reference_migrates_them():
    found = from_plain_acl(FILE)
    assert [(user.name, user.is_super) for user in found.users] == [
        ("RocketMQ", False), ("rocketmq2", True), ("third", False)]
    (acl,) = found.acls
    assert list(map(str, acl.custom)) == [
        "Deny All on Topic:topicA", "Allow Pub,Sub on Topic:topicB", "Allow Sub on Topic:topicC",
        "Deny All on Group:groupA", "Allow Pub,Sub on Group:groupB"]
    assert list(map(str, acl.default)) == ["Deny All on Topic:*", "Allow Sub on Group:*"]
    assert len(found.left_out) == 2
    assert "globalWhiteRemoteAddresses" in found.left_out[0]
    assert "192.168.0.* of RocketMQ" in found.left_out[1]


def account(**values):
    return {"accounts": [{"accessKey": "a", "secretKey": "s", **values}]}


@pytest.mark.parametrize(("value", "part"), [
    (None, "no list accounts"), ({"accounts": 5}, "no list accounts"), ({"accounts": ["x"]}, "accounts[0] is not"),
    (account(secretKey=None), "accounts[0]: password"), (account(topicPerms=["x"]), "'x' is not NAME=PERMISSION"),
    (account(topicPerms=["x=READ"]), "'READ' of Topic:x"), (account(defaultTopicPerm="ALL"), "'ALL' of Topic:*"),
    (account(topicPerms="x=PUB"), "not a list"), (account(acessKey="x"), "has acessKey"),
    ({"accounts": account()["accounts"] * 2}, "accounts[1]: a is there twice"),
])
def test_a_file_with_an_error_is_refused_with_its_place(value, part):
    with pytest.raises(ConfigError) as caught:
        from_plain_acl(value)
    assert part in str(caught.value)
