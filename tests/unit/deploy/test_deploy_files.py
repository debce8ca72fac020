"""Files of ``deploy/``: dashboards and rules name metrics that exist, the unit and the image commands that exist."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import promql
import pytest

from tailrace.env.supervisor import notify_supervisor
from tailrace.metrics import BASE_LABELS, METRICS, MetricKind

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"


OF_PROMETHEUS = {"up": promql.ADDED}
"""What Prometheus itself knows of a target; a server that has ended has no metrics of its own."""
OF_PROCESS = dict.fromkeys(("process_resident_memory_bytes", "process_cpu_seconds_total"), promql.ADDED)


def board():
    return json.loads((DEPLOY / "grafana" / "tailrace.json").read_text())


def queries():
    return [target["expr"] for panel in board()["panels"] for target in panel["targets"]]


def expressions():
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    return queries() + re.findall(r"^ +expr: (.*)$", rules, re.MULTILINE)


def exposed():
    """Names of samples, with their labels."""
    found = {**OF_PROMETHEUS, **OF_PROCESS}
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        for suffix in suffixes:
            found[metric.exposed + suffix] = {
                *promql.ADDED, *BASE_LABELS, *metric.labels, "le" if suffix == "_bucket" else ""}
    return found


def names_in(expression):
    return {one.name for one in promql.selectors(expression)}


@pytest.mark.parametrize("expression", expressions())
def test_dashboards_and_rules_use_metrics_and_labels_that_exist(expression):
    known, selectors = exposed(), promql.selectors(expression)
    assert selectors
    for one in selectors:
        assert one.labels <= known[one.name], one


def test_every_query_of_the_dashboard_is_of_the_brokers_that_are_chosen():
    variable = {one["name"]: one for one in board()["templating"]["list"]}["instance"]
    assert variable["query"]["query"] == variable["definition"] == "label_values(tailrace_ready, instance)"
    for query in queries():
        assert query.count('instance=~"$instance"') == len(promql.selectors(query)), query


def test_panels_do_not_overlap_and_each_has_a_name():
    places = {}
    for panel in board()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert places.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]
    titles = [panel["title"] for panel in board()["panels"]]
    assert len(set(titles)) == len(titles) > 20


def test_alerts_have_no_figures_with_decimals():
    """A bare value of increase() is 14.8225 of 15 dead letters."""
    shown = re.findall(r"\{\{([^}]*\$value[^}]*)\}\}", (DEPLOY / "prometheus" / "alerts.yaml").read_text())
    assert len(shown) > 8
    assert {one.strip() for one in shown} == {"printf `%.0f` $value", "$value | humanizeDuration"}


def test_prometheus_takes_the_rules(tmp_path):
    """`alerts-test.yaml` has series and the alerts that they raise."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    for name, folder in (("alerts.yaml", DEPLOY / "prometheus"), ("alerts-test.yaml", Path(__file__).parent)):
        shutil.copy(folder / name, tmp_path)
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_says_what_to_do_and_how_grave_it_is():
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text().split("- alert: ")[1:]
    assert len(rules) > 8
    for rule in rules:
        assert re.search(r"severity: (critical|warning)", rule), rule
        assert re.search(r'summary: ".{30,}"', rule), rule
        for label in re.findall(r"\$labels\.(\w+)", rule):
            names = names_in(rule.partition(" expr: ")[2].splitlines()[0])
            assert any(label in exposed()[name] for name in names), rule


def test_a_server_that_has_ended_and_a_job_without_targets_raise_alerts():
    """Without the process none of its metrics exists, and a comparison with a missing metric is never true."""
    rules = dict(re.findall(
        r"- alert: (\w+)\n(?: +#.*\n)* +expr: (.*)", (DEPLOY / "prometheus" / "alerts.yaml").read_text()))
    left = {name: rule for name, rule in rules.items() if names_in(rule) <= OF_PROMETHEUS.keys()}
    assert left == {"TailraceDown": 'up{job="tailrace"} == 0', "TailraceAbsent": 'absent(up{job="tailrace"})'}
    page = (DEPLOY.parent / "docs" / "how-to" / "operate" / "deploy.md").read_text()
    assert "job_name: tailrace\n" in page


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


def test_the_server_of_the_unit_may_write_its_settings_file():
    """A change by request replaces the file, which needs a directory that ProtectSystem=strict leaves writable."""
    state = f"/var/lib/{unit()['Service']['StateDirectory']}"
    assert unit()["Service"]["ProtectSystem"] == "strict"
    drop_in = (DEPLOY / "secure" / "tailrace.conf").read_text()
    for command in (unit()["Service"]["ExecStart"], re.findall(r"^ExecStart=(\S.*)$", drop_in, re.MULTILINE)[0]):
        words = command.split()
        assert words[words.index("serve") + 1] == f"{state}/store"
        assert Path(words[words.index("--config") + 1]).parent == Path(state)


def test_the_unit_gives_up_after_some_starts():
    limits, delay_s = unit()["Unit"], int(unit()["Service"]["RestartSec"])
    assert delay_s * int(limits["StartLimitBurst"]) < int(limits["StartLimitIntervalSec"]), "or the limit is never met"


def test_the_image_is_not_run_by_root_and_is_asked_how_it_is():
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^USER tailrace$", text, re.MULTILINE)
    assert "ready.py" in text.partition("HEALTHCHECK")[2]


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


def properties(name):
    lines = (DEPLOY / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def composed(name):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((DEPLOY / name).read_text())["services"]


def entrypoint():
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", "")
    return json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])


def examples():
    """Name, command and settings of every way in which deploy/ starts a server."""
    yield "the image", entrypoint(), {}
    yield "the unit", unit()["Service"]["ExecStart"].split(), {}
    yield "compose", [*entrypoint(), *composed("compose.yaml")["tailrace"].get("command", [])], {}
    secure = properties("secure/broker.conf")
    yield "secure compose", [*entrypoint(), *composed("secure/compose.yaml")["tailrace"]["command"]], secure
    drop_in = (DEPLOY / "secure" / "tailrace.conf").read_text()
    yield "secure unit", re.findall(r"^ExecStart=(\S.*)$", drop_in, re.MULTILINE)[0].split(), secure
    config, *_, broker = manifests()
    [container] = broker["spec"]["template"]["spec"]["containers"]
    read = dict(line.split("=") for line in config["data"]["broker.conf"].split())
    yield "kubernetes", [*entrypoint(), *container["args"]], read


def hosts_of(command, settings):
    """The hosts that a server listens on; those of its defaults are loopback addresses."""
    options = dict(pairwise(command))
    found = [options[name].rpartition(":")[0] for name in ("--listen", "--namesrv-listen", "--http", "--grpc")
             if name in options]
    return {*found, settings.get("bindAddress", "127.0.0.1")}


def test_no_example_opens_a_port_without_users_and_tls():
    open_ones = 0
    for name, command, settings in examples():
        assert "--allow-remote" not in command, name
        assert "--allow-plain" not in command, name
        if hosts_of(command, settings) <= {"127.0.0.1", "localhost", "::1"}:
            continue
        open_ones += 1
        assert settings["authenticationEnabled"] == settings["authorizationEnabled"] == "true", name
        assert settings["tls.server.mode"] == "enforcing", name
        assert {"--user", "--password-file"} <= {*command}, name
        assert dict(pairwise(command))["--http"].startswith("127.0.0.1:"), name
    assert open_ones == 3, "an example is for clients elsewhere"


def test_the_examples_publish_only_ports_that_need_a_user():
    assert all("ports" not in service for service in composed("compose.yaml").values())
    [secure] = composed("secure/compose.yaml").values()
    assert {port.rpartition(":")[2] for port in secure["ports"]} == {"9876", "10911"}
    text = (DEPLOY / "Containerfile").read_text()
    assert "8080" not in re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)[1].split()


def test_the_policy_lets_only_labelled_pods_in_and_nothing_out():
    _, service, policy, _ = manifests()
    assert policy["kind"] == "NetworkPolicy"
    [rule] = policy["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"tailrace-client": "true"}}}]
    assert {port["port"] for port in rule["ports"]} == {port["targetPort"] for port in service["spec"]["ports"]}
    assert policy["spec"]["egress"] == []
    assert {"Ingress", "Egress"} == {*policy["spec"]["policyTypes"]}


def test_the_unit_keeps_others_out_of_its_files_and_can_be_ended_for_memory():
    service = unit()["Service"]
    assert int(service["UMask"], 8) == 0o077
    assert int(service["StateDirectoryMode"], 8) == 0o700
    assert "OOMScoreAdjust" not in service, "a server that takes too much memory ends before other programs do"
    assert int(service["LimitNOFILE"]) >= 65_536, "half of it is for connections, the rest for files and a reserve"


def manifests():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_the_manifests_of_kubernetes_name_what_is_there():
    config, service, policy, broker = manifests()
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
    assert container["args"][:2] == ["--config", f"{mounts['config']}/broker.conf"]
    assert policy["spec"]["podSelector"] == broker["spec"]["selector"]
    assert config["metadata"]["name"] == pod["spec"]["volumes"][0]["configMap"]["name"]
    uid = re.search(r"--uid (\d+)", image)[1]
    assert pod["spec"]["securityContext"]["runAsUser"] == int(uid)
    read = dict(line.split("=") for line in config["data"]["broker.conf"].split())
    assert read["brokerIP1"] == service["metadata"]["name"]
    assert {*read} == {*properties("secure/broker.conf")}, "one set of settings for every way to run it"
    secrets = f"{mounts['secrets']}/"
    assert all(read[name].startswith(secrets) for name in ("tls.server.certPath", "tls.server.keyPath"))


def test_the_manifests_of_kubernetes_fit_its_schema():
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: pip install kubernetes-validate")
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.34", strict=True)
