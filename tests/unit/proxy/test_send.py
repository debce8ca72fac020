"""The queue of a message group."""

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

from tailrace.formats.commitlog import java_string_hash
from tailrace.formats.lite import consistent_hash


# What Guava's Hashing.consistentHash(long, int) returns.
@pytest.mark.parametrize(("value", "buckets", "bucket"), [
    (97, 1, 0), (97, 8, 0), (97, 1000, 346), (98, 4, 0), (98, 8, 5), (98, 1000, 184), (103, 4, 1), (103, 1000, 223),
    (1234255109, 4, 3), (1234255109, 1000, 380), (0, 1000, 0), (-685785664, 1, 0), (-685785664, 8, 3),
    (-685785664, 1000, 901), (1055301514, 8, 6), (1055301514, 1000, 227)])
def test_buckets_are_those_of_guava(value, buckets, bucket):
    assert consistent_hash(value, buckets) == bucket


def test_few_groups_move_when_a_queue_is_added():
    before = [consistent_hash(java_string_hash(f"group-{n}"), 8) for n in range(1000)]
    after = [consistent_hash(java_string_hash(f"group-{n}"), 9) for n in range(1000)]
    assert set(before) == set(range(8))
    assert {new for old, new in zip(before, after, strict=True) if old != new} == {8}
