"""Each query of the dashboard, and each rule, has data of a broker in use."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import promql
import pytest
from page_shell import Shell
from patience import until
from served_process import served_process

from tailrace.client import Producer, PushConsumer
from tailrace.model import Message

pytestmark = pytest.mark.integration
DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ONLY_AFTER = {"tailrace_recovered_ratio", "tailrace_tls_certificate_expires_seconds", "tailrace_name_server_registered"}
"""Metrics that a rule needs and that exist only during a recovery, with TLS, and with a name server elsewhere."""


def queries():
    board = json.loads((DEPLOY / "grafana" / "tailrace.json").read_text())
    return {target["expr"]: panel["title"] for panel in board["panels"] for target in panel["targets"]}


def rules():
    return re.findall(r"^ +expr: (.*)$", (DEPLOY / "prometheus" / "alerts.yaml").read_text(), re.MULTILINE)


def read(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with messages, a group that lags, a dead letter, a pending timer and one that was delivered."""
    with served_process(tmp_path_factory.mktemp("broker"), {}, "--http", "127.0.0.1:0") as served:
        def refuse(_: Message) -> None:
            raise ValueError("this order cannot be handled")

        with Producer(namesrv=served.namesrv) as producer:
            for number in range(4):
                producer.send(Message(topic="orders", body=b"order %d" % number))
            producer.send(Message(topic="orders", body=b"later", delay=3600))
            producer.send(Message(topic="orders", body=b"soon", delay=1))
        http = re.search(r"^http=(\S+)", served.log(), re.MULTILINE)[1]
        with PushConsumer(
            "shipping", refuse, namesrv=served.namesrv, topics="orders", start="first", max_reconsume_times=0,
            concurrency=1,
        ):
            for name in ("tailrace_dead_letters", "rocketmq_send_to_dlq_messages_total"):
                until(lambda name=name: re.search(name + r"{.*} [1-9]", read(f"http://{http}/metrics")))
        until(lambda: re.search(r"rocketmq_timing_messages{.*} [1-9]", read(f"http://{http}/metrics")))
        yield http


def test_each_query_chooses_samples_of_what_a_reader_of_metrics_sees(broker, tmp_path):
    shell = Shell(tmp_path, dict(os.environ), terminal=True)
    try:
        assert "# TYPE tailrace_put_latency_milliseconds histogram" in shell.run(
            f"curl -s http://{broker}/metrics | tee metrics.txt | grep put_latency")
    finally:
        shell.close()
    target = {"job": "tailrace", "instance": broker}
    found = [("up", target), *promql.samples((tmp_path / "metrics.txt").read_text(), target)]
    empty = []
    for text in [*queries(), *rules()]:
        for one in promql.selectors(text):
            chosen = [labels for name, labels in found if name == one.name and one.chooses(labels)]
            if not chosen and one.name not in ONLY_AFTER:
                empty.append((text, one))
            assert all(one.labels <= labels.keys() for labels in chosen), (text, one)
    assert not empty


def test_prometheus_shows_data_for_each_query(broker, tmp_path):
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    shutil.copy(DEPLOY / "prometheus" / "alerts.yaml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 250ms, evaluation_interval: 250ms}\nrule_files: [alerts.yaml]\nscrape_configs:\n"
        f"  - job_name: tailrace\n    static_configs: [{{targets: ['{broker}']}}]\n")
    with open(tmp_path / "log", "w+") as log, subprocess.Popen(
        [prometheus, "--config.file=prometheus.yml", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path=data"],
        cwd=tmp_path, stdout=log, stderr=log,
    ) as process:
        try:
            until(lambda: "Server is ready to receive web requests" in (tmp_path / "log").read_text())
            address = re.search(r"Listening on.*address=(\S+)", (tmp_path / "log").read_text())[1]

            def empty():
                return {title: text for text, title in queries().items() if not asked(address, text)}

            until(lambda: not empty())
            dead = read(f"http://{address}/api/v1/alerts")
            assert "TailraceDeadLetters" in dead
            assert re.search(r"Group shipping has [1-6] new dead letters on \S+?\"", dead)
        finally:
            process.terminate()
            process.wait(60)


def asked(address, text):
    text = text.replace("$__rate_interval", "10s").replace("$instance", ".*")
    query = urllib.parse.urlencode({"query": text})
    return json.loads(read(f"http://{address}/api/v1/query?{query}"))["data"]["result"]
