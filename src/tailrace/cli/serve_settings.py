"""Settings and addresses of ``tailrace serve``, from its options and a Java broker's file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from tailrace.broker.listeners import Address, is_own_address
from tailrace.broker.registration import name_server_addresses
from tailrace.cli.serve import NAMESRV_ADDR, parse_address
from tailrace.config import BrokerConfig, NameServerConfig, StoreConfig
from tailrace.errors import ConfigError
from tailrace.java_settings import REASONS, refuse_settings
from tailrace.logs import get_logger

__all__ = ["Places", "places_of", "take_settings"]

_log = get_logger(__name__)
NAMESRV_LISTEN: Final = "127.0.0.1:9876"
NONE: Final = "none"


class Places(NamedTuple):
    """Where a server listens."""

    broker: Address
    namesrv: Address | None
    """None: no name server runs in this process."""
    http: Address | None
    names: tuple[str, str]
    """The options or settings that say the first two, for errors."""

    @property
    def hosts(self) -> list[str]:
        """The hosts of all places."""
        return [place[0] for place in (self.broker, self.namesrv, self.http) if place is not None]


def take_settings(
    values: Mapping[str, str], ignored: Collection[str] = ()
) -> tuple[StoreConfig, BrokerConfig, NameServerConfig]:
    """Return the configurations of a file; log a warning for each refused setting in ``ignored``.

    Raises ConfigError for values that cannot work and for refused settings.
    """
    problems: list[str] = []
    try:
        for name, setting in refuse_settings(values, ignored).items():
            _log.warning("a setting is ignored as asked setting=%s reason=%s", name, REASONS[setting.reason])
    except ConfigError as error:
        problems += error.problems
    store, broker, name_server = StoreConfig(), BrokerConfig(), NameServerConfig()
    try:
        store = StoreConfig.from_properties(values)
    except ConfigError as error:
        problems += error.problems
    try:
        broker = BrokerConfig.from_properties(values)
        name_server_addresses(broker.namesrv_addr)
    except ConfigError as error:
        problems += error.problems
    try:
        name_server = NameServerConfig.from_properties(values)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return store, broker, name_server


def places_of(config: BrokerConfig, listen: str = "", namesrv_listen: str = "", http: str = "") -> Places:
    """Return where to listen: options win over settings. Raises ValueError that names the wrong one."""
    broker = parse_address(listen, "--listen") if listen else (config.bind_address, config.listen_port)
    others, name, namesrv = name_server_addresses(config.namesrv_addr), "--namesrv-listen", None
    if namesrv_listen:
        namesrv = None if namesrv_listen == NONE else parse_address(namesrv_listen, name)
    elif others:
        name = NAMESRV_ADDR
        namesrv = next((place for place in others if is_own_address(place[0])), None)
    else:
        namesrv = parse_address(NAMESRV_LISTEN, name)
    names = ("--listen" if listen else "bindAddress and listenPort", name)
    if broker == namesrv and broker[1]:
        raise ValueError(f"{names[0]} and {names[1]} are both {broker[0]}:{broker[1]}")
    return Places(broker, namesrv, parse_address(http, "--http") if http else None, names)
