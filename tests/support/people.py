"""Users with permissions, for processors that are called without a connection."""

from __future__ import annotations

from tailrace.auth.check import AccessControl
from tailrace.auth.model import User, acl_of
from tailrace.auth_settings import AuthConfig
from tailrace.testing import SimClock


class People:
    """Users by name, each with entries such as ``("Topic:orders", "Pub")``; ``root`` is a super user."""

    def __init__(self, cluster="DefaultCluster", *, settings=None, **entries):
        self.users = {"root": User("root", "r", is_super=True)}
        self.acls = {}
        config = AuthConfig(authentication_enabled=True, authorization_enabled=True, **(settings or {}))
        self.control = AccessControl(SimClock(), config, cluster, self.users.get, self.acls.get)
        for name, given in entries.items():
            self.add(name, *given)

    def add(self, name, *entries):
        self.users[name] = User(name, f"password of {name}")
        if entries:
            self.acls[name] = acl_of({"policies": [{"entries": [
                {"resource": resource, "actions": actions.split(","), "decision": "Allow"}
                for resource, actions in entries]}]}, f"User:{name}")
        self.control.changed()

    def remove(self, name):
        del self.users[name]
        self.acls.pop(name, None)
        self.control.changed()


def sent_by(user, request):
    """The request as it reaches a processor after its check."""
    request.sender = user
    return request
