"""Links from pages to actions, which are there only with ``serve --console-actions``.

An action says itself what its user lacks, so a link does not depend on permissions.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

from tailrace.console.elements import address, h, link
from tailrace.console.viewer import Viewer
from tailrace.formats.names import DLQ_GROUP_TOPIC_PREFIX

__all__ = ["group_actions", "message_actions", "resend_link", "retention_actions", "topic_actions", "topics_actions"]


def _links(viewer: Viewer, *links: tuple[str, str]) -> Element | None:
    return h("p", *(link(text, href) for text, href in links), class_="links") if viewer.acts else None


def topics_actions(viewer: Viewer) -> Element | None:
    """Return the action of the list of topics."""
    return _links(viewer, ("Create a topic", address("actions/put-topic")))


def topic_actions(viewer: Viewer, topic: str) -> Element | None:
    """Return the actions of a topic."""
    return _links(
        viewer, ("Change this topic", address("actions/put-topic", topic=topic)),
        ("Send a test message", address("actions/send-message", topic=topic)))


def group_actions(viewer: Viewer, group: str, *, has_dead_letters: bool) -> Element | None:
    """Return the actions of a group."""
    links = [("Reset its offsets", address("actions/reset-group", group=group))]
    if has_dead_letters:
        links.append(("Send its dead letters again", address("actions/resend", group=group)))
    return _links(viewer, *links)


def message_actions(viewer: Viewer, topic: str, queue_id: int, offset: int) -> Element | None:
    """Return the action of a message that is a dead letter."""
    if not topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        return None
    return _links(viewer, ("Send it again", address(
        "actions/resend", group=topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX), letter=f"{queue_id}:{offset}")))


def resend_link(viewer: Viewer, group: str) -> Element | None:
    """Return the action of the dead letters of a group."""
    return link("Send again", address("actions/resend", group=group)) if viewer.acts else None


def retention_actions(viewer: Viewer) -> Element | None:
    """Return the action of the page of retention."""
    return _links(viewer, ("Delete expired files now", address("actions/delete-expired")))
