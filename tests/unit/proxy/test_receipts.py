"""Receipt handles: RocketMQ's form, and what is refused."""

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.formats.pop import ExtraInfo
from tailrace.proxy.protocol import Code, GrpcError
from tailrace.proxy.receipts import ReceiptHandle

TEXT = "0 1795220152529 15000 5 0 broker-a 2 7 411"


def test_a_handle_has_the_fields_of_rocketmq():
    handle = ReceiptHandle.decode(TEXT, "broker-a")
    assert handle == ReceiptHandle(ExtraInfo(0, 1795220152529, 15000, 5, "0", "broker-a", 2, 7), 411)
    assert handle.encode() == TEXT


def test_the_position_is_the_last_field_of_a_changed_handle_of_the_proxy():
    assert ReceiptHandle.decode(f"{TEXT.rpartition(' ')[0]} 0 411", "broker-a").phy_offset == 411
    assert ReceiptHandle.decode(TEXT.rpartition(" ")[0], "broker-a").phy_offset == -1


@pytest.mark.parametrize(
    "text", ["", "abc", "0 1 2", TEXT.replace("1795220152529", "x"), TEXT.replace(" 0 broker", " 9 broker"),
             TEXT.replace("broker-a", "other"), "9" * 2000, f"{TEXT} {'9' * 2000}"])
def test_what_is_not_a_handle_of_this_broker_is_refused(text):
    with pytest.raises(GrpcError) as caught:
        ReceiptHandle.decode(text, "broker-a")
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE


def test_a_handle_expires_with_its_invisible_time():
    handle = ReceiptHandle.decode(TEXT, "broker-a")
    handle.check_time(1795220152529 + 14_999)
    with pytest.raises(GrpcError, match="expired"):
        handle.check_time(1795220152529 + 15_000)
