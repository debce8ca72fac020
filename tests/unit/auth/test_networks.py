"""What counts as one place of clients, for guessing, denials and shares."""

from __future__ import annotations

import pytest

from tailrace.auth.addresses import network_of


@pytest.mark.parametrize(("host", "network"), [
    ("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
    ("2001:db8:1:2::9", "2001:db8:1:2::"), ("fe80::1%eth0", "fe80::"), ("", ""), ("no:address", "no:address")])
def test_an_ipv6_address_stands_for_its_network_and_an_ipv4_address_for_itself(host, network):
    assert network_of(host) == network
