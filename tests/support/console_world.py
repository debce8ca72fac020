"""A served broker with users and a console that acts, and a browser without JavaScript to use it."""

from __future__ import annotations

import asyncio
import base64
import html
import http.client
import json
import re
import socket
import threading
from urllib.parse import urlencode

from patience import until

from tailrace.auth.signature import Credentials
from tailrace.client import Producer, PullConsumer
from tailrace.client.admin import AdminClient
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.message_headers import ConsumerSendMsgBackRequestHeader
from tailrace.model import Message, decode_message_id
from tailrace.pytest_plugin import TailraceBroker
from tailrace.remoting.client import RemotingClient

__all__ = ["ACTIONS", "PASSWORD", "ROOT", "ActingConsole", "Page"]

ROOT = Credentials("root", "root-secret-1234")
PASSWORD = "p" * 16
ACTIONS = "/console/actions/"


class Page:
    """An answer."""

    def __init__(self, status, text, headers):
        self.status, self.html, self.headers = status, text, headers

    @property
    def text(self):
        """The words of the page."""
        found = re.search(r"<main.*</main>", self.html, re.DOTALL)
        return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", found[0] if found else self.html))).strip()

    def field(self, name):
        """The value of an input; None without it."""
        for tag in re.findall(r"<input[^>]*>", self.html):
            if f'name="{name}"' in tag:
                found = re.search(r'value="([^"]*)"', tag)
                return html.unescape(found[1]) if found else ""
        return None

    @property
    def confirmation(self):
        """The fields that its button Confirm sends."""
        return {"carried": self.field("carried"), "token": self.field("token")}


class ActingConsole:
    """A broker with the super user root; a context manager."""

    def __init__(self, folder, *options, settings=None):
        password = folder / "password"
        password.write_text(ROOT.secret_key)
        self.audit_path = folder / "audit.jsonl"
        self.broker = TailraceBroker(
            folder / "store", "--http", "127.0.0.1:0", "--console-actions", "--user", "root", "--password-file",
            str(password), "--audit-log", str(self.audit_path), *options, settings=settings)

    def __enter__(self):
        self.broker.start()
        return self

    def __exit__(self, *_):
        self.stopped = self.broker.stop()

    @property
    def address(self):
        """Host and port of the console, of the last start."""
        return re.findall(r"^http=(\S+)$", self.broker.log_path.read_text(), re.MULTILINE)[-1]

    def ask(self, path, form=None, user="root", password=None, method=None, **fields):
        """Get a page, or post a form as its page would; ``fields`` replace those of the head, None leaves one out."""
        password = password if password is not None else ROOT.secret_key if user == "root" else PASSWORD
        address = self.address
        head = {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()} if user else {}
        body = None
        if form is not None:
            body = form if isinstance(form, bytes) else urlencode(form, doseq=True).encode()
            head |= {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://{address}"}
        for name, value in fields.items():
            head[name.replace("_", "-")] = value
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request(method or ("GET" if form is None else "POST"), path, body,
                           {name: value for name, value in head.items() if value is not None})
        answer = connection.getresponse()
        page = Page(answer.status, answer.read().decode(), answer.headers)
        connection.close()
        return page

    def preview(self, action, form, **more):
        """The page that says what would happen."""
        return self.ask(ACTIONS + action, form, **more)

    def confirm(self, action, preview, **more):
        """Confirm a page; return the page of the result."""
        answer = self.ask(ACTIONS + action, preview.confirmation, **more)
        if answer.status != 303:
            return answer
        while True:
            page = self.ask(answer.headers["Location"], **more)
            if 'http-equiv="refresh"' not in page.html:
                return page
            threading.Event().wait(0.05)

    def begin(self, action, preview, user="root"):
        """Confirm a page and leave before the answer; return the address of its result, as soon as that is there."""
        body = urlencode(preview.confirmation).encode()
        password = ROOT.secret_key if user == "root" else PASSWORD
        log_in = base64.b64encode(f"{user}:{password}".encode()).decode()
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall((
                f"POST {ACTIONS}{action} HTTP/1.1\r\nHost: {self.address}\r\nOrigin: http://{self.address}\r\n"
                f"Authorization: Basic {log_in}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
        result = f"{ACTIONS}done?job={preview.confirmation['token'].partition('.')[0]}"
        until(lambda: self.ask(result, user=user).status == 200)
        return result

    def do(self, action, form, **more):
        """Preview and confirm."""
        page = self.preview(action, form, **more)
        assert page.status == 200, page.text
        return self.confirm(action, page, **more)

    def audit(self):
        """The lines of the audit log."""
        return [json.loads(line) for line in self.audit_path.read_text().splitlines()]

    def admin(self, work):
        """Return the result of a function of an AdminClient of root."""

        async def run():
            async with AdminClient(broker=self.broker.broker, credentials=ROOT) as admin:
                return await work(admin)

        return asyncio.run(run())

    def add_user(self, name, *entries):
        """Add a user with entries such as ``Topic:orders=Pub,Get``."""

        async def add(admin):
            await admin.create_user(name, {"username": name, "password": PASSWORD, "userType": "Normal"})
            if entries:
                await admin.update_acl(f"User:{name}", {"subject": f"User:{name}", "policies": [{"entries": [
                    {"resource": text.partition("=")[0], "actions": text.partition("=")[2].split(","),
                     "decision": "Allow"} for text in entries]}]})

        self.admin(add)

    def producer(self, **more):
        """A producer of root."""
        return Producer(namesrv=self.broker.namesrv, group="p", credentials=ROOT, **more)

    def dead_letters(self, group, topic, count, *, body=b"dead %d", compression=None, **fields):
        """Send messages, and have a group give each of them up."""
        with self.producer(**({"compression": compression, "compress_over": 1} if compression else {})) as producer:
            sent = [producer.send(Message(
                topic=topic, body=body % number, keys=[f"key-{number}"], tags="t", **fields))
                for number in range(count)]

        async def give_up():
            client = RemotingClient(credentials=ROOT)
            for one in sent:
                header = ConsumerSendMsgBackRequestHeader(
                    offset=decode_message_id(one.offset_msg_id)[1], group=group, delay_level=-1, origin_topic=topic)
                answer = await client.invoke(self.broker.broker, RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
                assert answer.code == 0, answer.remark
            await client.close()

        asyncio.run(give_up())
        return sent

    def messages(self, topic):
        """The messages of a topic."""
        with PullConsumer(namesrv=self.broker.namesrv, group="reader", credentials=ROOT) as consumer:
            return list(consumer.messages(topic, start="first", follow=False))
