"""Names that have passed their check are remembered, and no others pass with them."""

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.proxy import validation
from tailrace.proxy.protocol import Code, GrpcError, definition
from tailrace.proxy.validation import check_group, check_topic

CHECKS = [(check_topic, Code.ILLEGAL_TOPIC), (check_group, Code.ILLEGAL_CONSUMER_GROUP)]


@pytest.mark.parametrize(("check", "code"), CHECKS)
def test_a_name_that_was_fine_does_not_excuse_another_one(check, code):
    for _ in range(2):
        assert check(definition.Resource(name="shop%orders")) == "shop%orders"
        assert check(definition.Resource(resource_namespace="shop", name="orders")) == "shop%orders"
        assert check(definition.Resource(name="shop%")) == "shop%"
        for bad in (
            definition.Resource(resource_namespace="shop", name=""), definition.Resource(name=" "),
            definition.Resource(name="a b"), definition.Resource(name="x" * 128),
            definition.Resource(name="TRANS_CHECK_MAX_TIME_TOPIC") if check is check_topic
            else definition.Resource(name="CID_RMQ_SYS_x"),
        ):
            with pytest.raises(GrpcError) as refused:
                check(bad)
            assert refused.value.code == code


@pytest.mark.parametrize("check", [check_topic, check_group])
def test_remembered_names_are_bounded(check, monkeypatch):
    monkeypatch.setattr(validation, "REMEMBERED_MAX", 3)
    names = validation._topics if check is check_topic else validation._groups
    names.clear()
    for number in range(10):
        assert check(definition.Resource(name=f"name-{number}")) == f"name-{number}"
    assert len(names) <= 3
