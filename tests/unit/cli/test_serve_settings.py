"""Where ``serve`` listens, and which settings stop it."""

from __future__ import annotations

import logging
import re
import socket

import commands
import pytest

from tailrace.cli.serve_settings import places_of, set_by_hand, take_settings
from tailrace.config import BrokerConfig, BrokerRole
from tailrace.errors import ConfigError

OWN = ("127.0.0.1", 9876)


@pytest.mark.parametrize(("settings", "options", "broker", "namesrv"), [
    ({}, {}, ("127.0.0.1", 10911), OWN),
    ({"listenPort": "6888"}, {}, ("127.0.0.1", 6888), OWN),
    ({"listenPort": "6888", "bindAddress": "0.0.0.0"}, {}, ("0.0.0.0", 6888), OWN),
    ({"listenPort": "6888"}, {"listen": "127.0.0.1:0"}, ("127.0.0.1", 0), OWN),
    ({"namesrvAddr": "127.0.0.1:9000"}, {}, ("127.0.0.1", 10911), ("127.0.0.1", 9000)),
    ({"namesrvAddr": "192.0.2.9:9876;127.0.0.1:9000"}, {}, ("127.0.0.1", 10911), ("127.0.0.1", 9000)),
    ({"namesrvAddr": "192.0.2.9:9876"}, {}, ("127.0.0.1", 10911), None),
    ({"namesrvAddr": "127.0.0.1:9000"}, {"namesrv_listen": "none"}, ("127.0.0.1", 10911), None),
    ({"namesrvAddr": "127.0.0.1:9000"}, {"namesrv_listen": "127.0.0.1:0"}, ("127.0.0.1", 10911),
     ("127.0.0.1", 0)),
])
def test_an_option_wins_over_a_setting_and_a_setting_over_the_default(settings, options, broker, namesrv):
    places = places_of(take_settings(settings)[1], **options)
    assert (places.broker, places.namesrv, places.http) == (broker, namesrv, None)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"bindAddress and listenPort and namesrvAddr are both 127\.0\.0\.1:5"):
        places_of(BrokerConfig(listen_port=5, namesrv_addr="127.0.0.1:5"))
    with pytest.raises(ValueError, match="--listen 10911 is not HOST:PORT"):
        places_of(BrokerConfig(), "10911")
    with pytest.raises(ConfigError, match="namesrvAddr=here is not HOST:PORT"):
        places_of(BrokerConfig(namesrv_addr="here"))


def test_a_slave_has_no_name_server_of_its_own():
    """One on the machine of its master would take the address of the master's name server, and register itself as 0."""
    slave = BrokerConfig(broker_id=1, namesrv_addr="127.0.0.1:9876")
    assert places_of(slave).namesrv is None
    assert places_of(slave, namesrv_listen="none").namesrv is None
    with pytest.raises(ValueError, match="a slave has no name server, it registers at namesrvAddr"):
        places_of(slave, namesrv_listen="127.0.0.1:0")


def serve(tmp_path, text, *options):
    (tmp_path / "broker.conf").write_text(text)
    return commands.run("serve", tmp_path / "new", "--config", tmp_path / "broker.conf", *options)


def test_a_promise_that_is_not_kept_stops_serve_with_one_line(tmp_path):
    done = serve(tmp_path, "aclEnable=true\nenableSlaveActingMaster=true\nwaitTimeMillsInSendQueue=200\n")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == (
        "tailrace: settings that cannot be honoured: aclEnable=true (access control of 4.x is not "
        "checked; import its users with `tailrace acl import plain_acl.yml` and set authenticationEnabled and "
        "authorizationEnabled), "
        "enableSlaveActingMaster=true (no slave acts for its master: a promotion is a command); remove "
        "them, or start without what they promise: --ignore-setting aclEnable --ignore-setting "
        "enableSlaveActingMaster\n")
    assert not (tmp_path / "new").exists()


def test_an_ignored_setting_is_logged_and_the_rest_still_counts(tmp_path):
    done = serve(
        tmp_path, "aclEnable=true\nlistenPort=70000\nmaxMessageSize=x\n", "--ignore-setting", "aclEnable")
    assert done.returncode == 78
    assert "a setting is ignored as asked setting=aclEnable reason=access control of 4.x is not checked" in done.stderr
    assert "tailrace: maxMessageSize=x is not a whole number" in done.stderr
    assert "; listenPort=70000 is outside 0 to 65535" in done.stderr, "all problems are said together"
    done = serve(tmp_path, "listenPort=70000\n", "--ignore-setting", "aclEnable")
    assert done.stderr == (
        "tailrace: --ignore-setting aclEnable: the file has no such setting that can be ignored; "
        "listenPort=70000 is outside 0 to 65535\n")


@pytest.mark.parametrize(("settings", "said"), [
    ({"brokerRole": "SLAVE"}, ("brokerRole=SLAVE needs a brokerId above 0", "brokerRole=SLAVE needs namesrvAddr")),
    ({"brokerId": "1"}, ("brokerId=1 needs brokerRole=SLAVE",)),
])
def test_role_and_number_of_a_broker_must_fit(settings, said):
    with pytest.raises(ConfigError) as refused:
        take_settings(settings)
    assert len(refused.value.problems) == len(said)
    assert all(problem.startswith(start) for problem, start in zip(refused.value.problems, said, strict=True))


def test_a_slave_needs_a_number_and_a_name_server():
    found = take_settings({"brokerRole": "SLAVE", "brokerId": "1", "namesrvAddr": "127.0.0.1:9876"})
    assert found.store.broker_role is BrokerRole.SLAVE


def test_an_address_that_others_reach_needs_a_word_also_from_a_file(tmp_path):
    done = serve(tmp_path, "bindAddress=0.0.0.0\n")
    assert done.returncode == 2
    assert "0.0.0.0 can be reached by other machines" in done.stderr


def test_a_name_server_that_runs_already_is_named_with_the_way_out(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve(tmp_path, f"namesrvAddr=127.0.0.1:{port}\nlistenPort=0\n")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"tailrace: cannot listen on namesrvAddr 127.0.0.1:{port}: Address already in use")
    assert last.endswith("; if that is a name server, --namesrv-listen none registers the broker there")


def test_the_option_of_the_audit_log_overrides_the_setting():
    assert take_settings({"auditLog": "a"}).auth.audit_log == "a"
    assert take_settings({"auditLog": "a"}, audit_log="b").auth.audit_log == "b"


def test_settings_of_the_command_line_win_over_the_file_and_are_logged(caplog):
    with caplog.at_level(logging.INFO, "tailrace"):
        found = set_by_hand(["fileReservedTime=7", "brokerName=b=1"])
    assert found == {"fileReservedTime": "7", "brokerName": "b=1"}
    assert take_settings({"fileReservedTime": "5"} | found).store.file_reserved_time == 7
    assert "settings=fileReservedTime,brokerName" in caplog.text
    assert set_by_hand([]) == {}


@pytest.mark.parametrize(("items", "text"), [
    (["fileReservdTime=4"], "--set: no such setting here: fileReservdTime (is fileReservedTime meant?)"),
    (["nonsense=4", "fileReservedTime=7"], "--set: no such setting here: nonsense"),
    (["waitTimeMillsInSendQueue=300"], "--set: no such setting here: waitTimeMillsInSendQueue"),
])
def test_a_setting_that_does_not_exist_is_refused_on_the_command_line(items, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        set_by_hand(items)


def test_serve_refuses_wrong_settings_of_the_command_line_as_those_of_the_file(tmp_path):
    done = serve(tmp_path, "fileReservedTime=5\n", "--set", "fileReservdTime=4")
    assert (done.returncode, done.stdout) == (78, "")
    assert "is fileReservedTime meant?" in done.stderr
    done = serve(tmp_path, "", "--set", "brokerRole=SLAVE")
    assert (done.returncode, "brokerRole=SLAVE" in done.stderr) == (78, True)
    assert serve(tmp_path, "", "--set", "fileReservedTime").returncode == 2
    assert not (tmp_path / "new").exists()
