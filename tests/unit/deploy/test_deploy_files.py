"""Files of ``deploy/``: dashboards and rules name metrics that exist, the unit and the image commands that exist."""

from __future__ import annotations

import configparser
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.config import BrokerConfig
from tailrace.env.supervisor import notify_supervisor
from tailrace.metrics import BASE_LABELS, METRICS, MetricKind

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


def expressions():
    board = json.loads((DEPLOY / "grafana" / "tailrace.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    return found + re.findall(r"^ +expr: (.*)$", rules, re.MULTILINE)


def exposed():
    """Names of samples, with their labels."""
    found = {}
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        for suffix in suffixes:
            found[metric.exposed + suffix] = {*BASE_LABELS, *metric.labels, "le" if suffix == "_bucket" else ""}
    return found


@pytest.mark.parametrize("expression", expressions())
def test_dashboards_and_rules_use_metrics_and_labels_that_exist(expression):
    known = exposed()
    names = set(re.findall(r"\b(?:tailrace|rocketmq)_\w+", expression))
    assert names <= set(known)
    assert names
    labels = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    labels |= {name for group in re.findall(r"\{([^}]*)\}", expression) for name in re.findall(r"(\w+)=", group)}
    assert labels <= set().union(*(known[name] for name in names))


def test_every_rule_says_what_to_do_and_how_grave_it_is():
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text().split("- alert: ")[1:]
    assert len(rules) > 8
    for rule in rules:
        assert re.search(r"severity: (critical|warning)", rule), rule
        assert re.search(r'summary: ".{30,}"', rule), rule
        for label in re.findall(r"\$labels\.(\w+)", rule):
            names = re.findall(r"\b(?:tailrace|rocketmq)_\w+", rule.partition("expr: ")[2].splitlines()[0])
            assert any(label in exposed()[name] for name in names), rule


def unit():
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str
    read.read(DEPLOY / "tailrace.service")
    return read


def commands():
    yield unit()["Service"]["ExecStart"].split()
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    yield json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("command", [*commands()])
def test_the_unit_and_the_image_start_serve_with_options_that_it_has(command):
    assert command[0].endswith("/bin/tailrace")
    assert command[1] == "serve"
    shown = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "serve", "--help"], capture_output=True, text=True, timeout=60,
        check=True, env=os.environ | {"COLUMNS": "200"}).stdout
    assert [word for word in command if word.startswith("--") and word not in shown] == []


@pytest.mark.parametrize(("more", "settings", "code"), [
    ([], "flushDiskType=NOPE\n", 78), ([], "brokerName\n", 78), ([], "brokerRole=SLAVE\n", 78),
    ([], "tls.test.mode.enable=false\ntls.server.certPath=none.pem\ntls.server.keyPath=none.key\n", 78),
    ([], f"serverSocketMaxConnections={1 << 30}\n", 78), ([], "bindAddress=0.0.0.0\n", 2), (["--http", "80"], "", 2),
])
def test_the_unit_does_not_start_again_what_fails_again(tmp_path, more, settings, code):
    (tmp_path / "broker.conf").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "store", "--config", tmp_path / "broker.conf",
         *(more or ["--listen", "127.0.0.1:0"] * ("bindAddress" not in settings)), "--namesrv-listen", "none"],
        capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert str(code) in unit()["Service"]["RestartPreventExitStatus"].split()
    assert not (tmp_path / "store").exists()


def test_the_unit_starts_again_what_may_work_later(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "store", "--namesrv-listen", "none", "--listen",
             f"127.0.0.1:{taken.getsockname()[1]}"], capture_output=True, text=True, timeout=60, check=False)
    service = unit()["Service"]
    assert done.returncode == 1, done.stderr
    assert str(done.returncode) not in service["RestartPreventExitStatus"].split()
    assert service["Restart"] == "on-failure"


def test_the_unit_gives_up_after_some_starts():
    limits, delay_s = unit()["Unit"], int(unit()["Service"]["RestartSec"])
    assert delay_s * int(limits["StartLimitBurst"]) < int(limits["StartLimitIntervalSec"]), "or the limit is never met"


def test_the_image_is_not_run_by_root_and_is_asked_how_it_is():
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^USER tailrace$", text, re.MULTILINE)
    assert "/ready" in text.partition("HEALTHCHECK")[2]


@pytest.mark.parametrize(("state", "status", "sent"), [
    ("READY=1", "serving", "READY=1\nSTATUS=serving"), ("STOPPING=1", "", "STOPPING=1"),
    ("EXTEND", "a\nb", "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=a b"),
])
def test_a_service_manager_is_notified(state, status, sent, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert notify_supervisor(state, status)
        assert manager.recv(4096).decode() == sent


def test_without_a_service_manager_nothing_is_sent_and_one_that_has_gone_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify_supervisor("READY=1")
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not notify_supervisor("READY=1")
    assert "the service manager was not notified" in caplog.text


def manifests():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_the_manifests_of_kubernetes_name_what_is_there():
    config, service, broker = manifests()
    pod = broker["spec"]["template"]
    [container] = pod["spec"]["containers"]
    image = (DEPLOY / "Containerfile").read_text()
    exposed_ports = set(map(int, re.search(r"^EXPOSE (.*)$", image, re.MULTILINE)[1].split()))
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(named.values()) <= exposed_ports
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == named
    assert broker["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == broker["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert re.search(r"^VOLUME (.*)$", image, re.MULTILINE)[1] == mounts["store"]
    assert container["args"] == ["--config", f"{mounts['config']}/broker.conf"]
    assert config["metadata"]["name"] == pod["spec"]["volumes"][0]["configMap"]["name"]
    uid = re.search(r"--uid (\d+)", image)[1]
    assert pod["spec"]["securityContext"]["runAsUser"] == int(uid)
    read = dict(line.split("=") for line in config["data"]["broker.conf"].split())
    assert BrokerConfig.from_properties(read).broker_ip1 == service["metadata"]["name"]


def test_the_manifests_of_kubernetes_fit_its_schema():
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: pip install kubernetes-validate")
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.34", strict=True)
