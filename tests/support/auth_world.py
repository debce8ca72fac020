"""A check of requests with two users, and requests to it."""

from __future__ import annotations

from tailrace.auth.check import AccessControl
from tailrace.auth.model import User, acl_of
from tailrace.auth.signature import Credentials, sign
from tailrace.auth_settings import AuthConfig
from tailrace.errors import RefusalError
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand
from tailrace.testing import SimClock

ANN = Credentials("ann", "pässword")
WRONG = Credentials("ann", "wrong")
SEND = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
STATEFUL = "org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy"


class Peer:
    """A connection."""

    def __init__(self, ip="127.0.0.1"):
        self.peer_ip = ip
        self.authenticated = False
        self.user = ""
        self.users = {}
        self.proof = None
        self.own_address = "10.0.0.1:10911"


class World:
    """A check, the users and permissions of which a test may change."""

    def __init__(self, resource="Topic:orders", **settings):
        self.clock = SimClock()
        self.users = {"ann": User("ann", ANN.secret_key), "root": User("root", "r", is_super=True)}
        self.acls = {"ann": acl_of({"subject": "User:ann", "policies": [{"entries": [
            {"resource": resource, "actions": ["Pub"], "decision": "Allow"}]}]})}
        self.control = AccessControl(
            self.clock, AuthConfig(**{"authentication_enabled": True, "authorization_enabled": True, **settings}),
            "DefaultCluster", self.users.get, self.acls.get)

    def remark(self, ext=None, body=b"body", *, code=310, peer=None, version=MQ_VERSION, by=None):
        """Return the remark with which a request is refused; empty if it is served."""
        refusal = self.refusal(ext, body, code=code, peer=peer, version=version, by=by)
        return refusal.remark if refusal else ""

    def refusal(self, ext=None, body=b"body", *, code=310, peer=None, version=MQ_VERSION, by=None):
        """Return the error with which a request is refused; None if it is served."""
        ext = dict(SEND if ext is None else ext)
        if by is not None:
            ext = sign(ext, body, by, version)
        try:
            self.control.check(peer or Peer(), RemotingCommand(code, ext, body, version=version))
        except RefusalError as refusal:
            assert refusal.code == 16
            return refusal
        return None
