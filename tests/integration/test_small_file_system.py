"""A file system smaller than a step of the log: the start, the log, `/ready` and a metric say that sends fail."""

import json
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration
MOUNT = 'mount -t tmpfs -o size=60m tmpfs "$0" && exec "$@"'
DRIVER = r"""
import json, os, re, subprocess, sys, time, urllib.error, urllib.request
from tailrace import Message
from tailrace.client import Producer
from tailrace.errors import RemotingCommandError
place = sys.argv[1]
server = subprocess.Popen(
    [sys.executable, "-m", "tailrace.cli", "serve", place + "/s", "--listen", "127.0.0.1:0", "--namesrv-listen", "none",
     "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=open(place + "/log", "w"), text=True)
broker = re.search(r"broker=(\S+)", server.stdout.readline())[1]
http = re.search(r"http=(\S+)", open(place + "/log").read())[1]

def get(path):
    try:
        with urllib.request.urlopen("http://" + http + path) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

found = {"fresh": get("/ready"), "refused": 0, "sent": 0}
with Producer(broker=broker, group="p") as producer:
    for n in range(5):
        try:
            producer.send(Message(topic="T", body=b"x"))
        except RemotingCommandError:
            found["refused"] += 1
    found["failing"] = get("/ready")
    found["metrics"] = [line for line in get("/metrics")[1].splitlines() if 'reason="no_room"' in line]
    with open(place + "/fill", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    try:
        producer.send(Message(topic="other", body=b"x"))
    except RemotingCommandError as error:
        time.sleep(2)  # scrapers of one second share a text
        found["no topic"] = [str(error), *(
            line for line in get("/metrics")[1].splitlines() if 'reason="no_topic"' in line)]
    os.remove(place + "/fill")
    subprocess.run(["mount", "-o", "remount,size=400m", place], check=True)
    for _ in range(100):
        found["roomy"] = get("/ready")
        if found["roomy"][0] == 200:
            break
        time.sleep(0.1)
    found["status"] = producer.send(Message(topic="T", body=b"x")).status
server.terminate()
server.wait(20)
found["log"] = [line for line in open(place + "/log").read().splitlines() if " WARNING " in line or " again" in line]
print(json.dumps(found))
"""


def test_what_an_operator_sees(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, str(tmp_path), sys.executable, "-c", DRIVER, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120)
    if done.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fresh"] == [200, "ready\n"]
    assert found["refused"] == 5  # the default settings reserve more than the file system has
    code, text = found["failing"]
    assert code == 503
    assert text.startswith("sends fail: no space for ")
    assert found["metrics"][0].endswith(" 15.0")  # the client tries each message three times
    error, counted = found["no topic"]
    assert "topics.json" in error
    assert counted.endswith(" 3.0")
    small, refused, *failed, again = [line for line in found["log"] if "request failed" not in line]
    assert "sends are refused reason=no_topic count=1 cause=" in failed[0]
    assert "a file system is too small for the log" in small
    assert "settings=mappedFileSizeCommitLog=2097152,commitLogAllocateStep=524288" in small
    assert "sends are refused reason=no_room count=1 cause=no space for " in refused
    assert "sends find room again refused=18" in again
    assert found["roomy"] == [200, "ready\n"]
    assert found["status"] == "SEND_OK"
