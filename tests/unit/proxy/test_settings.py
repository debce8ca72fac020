"""What the server decides about the settings of a client, and the delays of a group."""

from types import SimpleNamespace

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.node.subscription_group import SubscriptionGroupConfig
from tailrace.proxy.protocol import Code, GrpcError, definition
from tailrace.proxy.settings import filter_data, merged, of_consumer, retry_delay_ms


def group(**policy):
    return SubscriptionGroupConfig(group_name="g", retry_max_times=3, extra={"groupRetryPolicy": policy})


def merged_for(config):
    groups = SimpleNamespace(select=lambda _: config)
    settings = definition.Settings(subscription=definition.Subscription(group=definition.Resource(name="g")))
    settings.backoff_policy.exponential_backoff.multiplier = 9  # of the client, which the server replaces
    return merged(groups, settings)


def test_the_back_off_is_that_of_the_group():
    policy = merged_for(group(type="CUSTOMIZED", customizedRetryPolicy={"next": [1500, 2000]})).backoff_policy
    assert policy.max_attempts == 4
    assert [(d.seconds, d.nanos) for d in policy.customized_backoff.next] == [(1, 500_000_000), (2, 0)]
    assert not policy.HasField("exponential_backoff")
    own = {"initial": 100, "max": 9000, "multiplier": 3}
    policy = merged_for(group(type="EXPONENTIAL", exponentialRetryPolicy=own))
    backoff = policy.backoff_policy.exponential_backoff
    assert (backoff.initial.nanos, backoff.max.seconds, backoff.multiplier) == (100_000_000, 9, 3)


@pytest.mark.parametrize("config", [
    None, group(), SubscriptionGroupConfig(group_name="g", consume_message_orderly=True, retry_max_times=0)])
@pytest.mark.parametrize("is_producer", [False, True])
def test_a_receive_uses_what_the_client_was_told(config, is_producer):
    groups = SimpleNamespace(select=lambda _: config)
    settings = definition.Settings(subscription=definition.Subscription(group=definition.Resource(name="g")))
    if is_producer:
        settings = definition.Settings(publishing=definition.Publishing())
    told = merged(groups, settings)
    assert of_consumer(groups, settings) == (told.subscription.fifo, told.backoff_policy.max_attempts)


@pytest.mark.parametrize(("policy", "times", "ms"), [
    ({}, 0, 10_000), ({}, 1, 30_000), ({}, 99, 7_200_000), ({"type": "EXPONENTIAL"}, 0, 5_000),
    ({"type": "EXPONENTIAL"}, 2, 20_000), ({"type": "EXPONENTIAL"}, 99, 7_200_000),
    ({"customizedRetryPolicy": {"next": [7]}}, 0, 7), ({"customizedRetryPolicy": {"next": ["x"]}}, 0, 10_000),
    ({"customizedRetryPolicy": []}, 0, 10_000)])
def test_a_message_that_is_renewed_for_too_long_comes_back_by_the_policy(policy, times, ms):
    assert retry_delay_ms(group(**policy), times) == ms


def test_an_expression_that_names_no_tag_is_refused():
    expression = definition.FilterExpression(type=definition.FilterType.TAG, expression="a || b")
    assert filter_data("t", expression).tags == ("a", "b")
    for wrong in (
        definition.FilterExpression(type=definition.FilterType.TAG, expression=" || "),
        definition.FilterExpression(type=definition.FilterType.SQL, expression=""),
    ):
        with pytest.raises(GrpcError) as caught:
            filter_data("t", wrong)
        assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION
