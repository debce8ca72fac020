"""The pages below ``/console/actions/``: forms, their confirmation, and what has become of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, final
from urllib.parse import parse_qs, unquote, urlsplit

from tailrace.auth.check import AccessControl
from tailrace.broker.admin.group_offsets import GroupOffsetsProcessor
from tailrace.broker.admin.topics import TopicsProcessor
from tailrace.broker.core.audit import Audit
from tailrace.console.actions.calls import ActingBroker, Calls
from tailrace.console.actions.deletion import DeleteExpired
from tailrace.console.actions.forms import Action, FieldError, Given, Plan, alert, hidden
from tailrace.console.actions.group_reset import ResetGroup
from tailrace.console.actions.jobs import Job, Jobs
from tailrace.console.actions.resend import ResendDeadLetters
from tailrace.console.actions.sending import SendTestMessage
from tailrace.console.actions.tokens import TokenError, Tokens
from tailrace.console.actions.topic_config import PutTopic
from tailrace.console.elements import NOTE, Child, address, h, link, notice
from tailrace.console.pages import HEADERS, action_page
from tailrace.env.entropy import secret_bytes
from tailrace.errors import RefusalError, StoreError
from tailrace.formats.remoting import ResponseCode
from tailrace.observe.http_status import ACTIONS, Asked, HttpAnswer
from tailrace.remoting import RemotingServer

__all__ = ["ConsoleActions"]

CARRIED: Final = "carried"
"""Field of a confirmation: what the form said, as JSON of ASCII, so that no browser changes a character."""
RELOAD_S: Final = 2
OPEN_MAX: Final = 8
"""Pages that may be made at the same time, because each may read dead letters or the files of the log."""
_HEADERS: Final = {**HEADERS, "Referrer-Policy": "same-origin"}
"""With no referrer a browser does not say from which page a form comes."""
_FORBIDDEN: Final = frozenset({ResponseCode.NO_PERMISSION})


@final
class ConsoleActions:
    """Answers requests for ``/console/actions/``, with what the broker allows their users. Used on the event loop."""

    def __init__(
        self, broker: ActingBroker, control: AccessControl, server: RemotingServer, audit: Audit,
        topics: TopicsProcessor, offsets: GroupOffsetsProcessor,
    ) -> None:
        """``server`` checks and records the requests of users (`BrokerController.for_users`).

        ``topics`` and ``offsets`` say what a request would change.
        """
        self._broker, self._control, self._server = broker, control, server
        self._tokens = Tokens(broker.clock, broker.entropy, secret_bytes(32))
        self._jobs = Jobs()
        self._open = 0
        """Number of pages of actions that are being made."""
        actions: tuple[Action, ...] = (
            ResendDeadLetters(audit), ResetGroup(offsets), PutTopic(topics), SendTestMessage(audit), DeleteExpired())
        self._actions = {action.name: action for action in actions}

    async def stop(self) -> None:
        """Have what runs end before its next step."""
        await self._jobs.stop()

    async def __call__(self, asked: Asked) -> HttpAnswer:
        """Return the page for a request. Raises RefusalError (SYSTEM_BUSY) if too many actions run."""
        parts = urlsplit(asked.target)
        name = unquote(parts.path.removeprefix(ACTIONS)).strip("/")
        given = Given(asked.form if asked.method == "POST" else parse_qs(parts.query))
        action = self._actions.get(name)
        if action is not None:
            if self._open >= OPEN_MAX:
                raise RefusalError(
                    ResponseCode.SYSTEM_BUSY, f"{self._open} pages of actions are being made; try again later")
            self._open += 1
            calls = Calls(self._broker, self._control, self._server, asked.user, asked.peer)
            try:
                if asked.method != "POST":
                    return await self._form(action, calls, given)
                return await self._posted(action, calls, given)
            finally:
                calls.close()
                self._open -= 1
        if name == "done":
            return self._done(asked.user.name, given)
        if name == "stop" and asked.method == "POST":
            return self._stop(asked.user.name, given)
        if not name:
            return _page("Actions", [h("ul", *(
                h("li", link(one.title, address(f"actions/{one.name}"))) for one in self._actions.values()))])
        return _page("Not found", [h("p", "There is no such action.")], HTTPStatus.NOT_FOUND)

    async def _form(
        self, action: Action, calls: Calls, given: Given, problem: str = "", status: HTTPStatus = HTTPStatus.OK
    ) -> HttpAnswer:
        """Return the form of an action, filled with what was given."""
        warning = alert(problem) if problem else None
        try:
            fields = await action.form(calls, given)
        except (RefusalError, FieldError, StoreError, ValueError) as error:
            if problem:
                return _page(action.title, [warning], status)
            refused = isinstance(error, RefusalError) and error.code in _FORBIDDEN
            return _page(action.title, [alert(str(error))],
                         HTTPStatus.FORBIDDEN if refused else HTTPStatus.BAD_REQUEST)
        return _page(action.title, [
            warning, h("form", *fields, action=address(f"actions/{action.name}"), method="post", class_="action")],
            status)

    async def _posted(self, action: Action, calls: Calls, given: Given) -> HttpAnswer:
        """Return what a form would do; with a token, start that; with the button Change, return the form again."""
        carried = given.text(CARRIED)
        if carried:
            try:
                given = Given({**given.values, **_carried(carried, action)})
            except ValueError:
                return await self._form(
                    action, calls, given, "The form has no valid confirmation.", HTTPStatus.BAD_REQUEST)
        if given.text("change"):
            return await self._form(action, calls, given)
        try:
            if reason := self._broker.store.read_only:
                raise RefusalError(ResponseCode.SYSTEM_ERROR, f"The store takes no changes: {reason}")
            plan = await action.plan(calls, given)
        except FieldError as error:
            return await self._form(action, calls, given, str(error), HTTPStatus.BAD_REQUEST)
        except RefusalError as error:
            return await self._form(
                action, calls, given, error.remark,
                HTTPStatus.FORBIDDEN if error.code in _FORBIDDEN else HTTPStatus.CONFLICT)
        except (StoreError, TimeoutError) as error:
            return await self._form(
                action, calls, given, str(error) or "The broker has not answered in time.", HTTPStatus.CONFLICT)
        values = {name: given.all(name) for name in action.fields if name in given.values} | dict(plan.carries)
        said = {"values": values, "seen": plan.seen}
        if not given.text("token"):
            return self._confirmation(action, calls, plan, values, said)
        try:
            token = self._tokens.check(given.text("token"), calls.user.name, action.name, said)
        except TokenError as error:
            return self._confirmation(
                action, calls, plan, values, said, f"{error} Read what would happen now, and confirm it again.")
        if not token.is_used:
            self._jobs.check_room()
            if not self._tokens.use(token):
                raise RefusalError(ResponseCode.SYSTEM_BUSY, "too many actions were confirmed; try again later")
            job = Job(token.number, calls.user.name, plan.title, action.name, json.dumps(values))
            await self._jobs.run(job, self._work(plan, calls))
        to = address("actions/done", job=token.number)
        return _page("See the result", [h("p", link("The result", to))], HTTPStatus.SEE_OTHER,
                     headers={"Location": to})

    def _work(self, plan: Plan, asking: Calls) -> Callable[[Job], Awaitable[list[Child]]]:
        """Return the work of a job, with a connection of its own, which ends with it."""
        host, _, port = asking.address.rpartition(":")

        async def work(job: Job) -> list[Child]:
            calls = Calls(self._broker, self._control, self._server, asking.user, (host.strip("[]"), int(port)))
            try:
                return await plan.run(job, calls)
            finally:
                calls.close()

        return work

    def _confirmation(
        self, action: Action, calls: Calls, plan: Plan, values: Mapping[str, list[str]], said: Mapping[str, object],
        problem: str = "",
    ) -> HttpAnswer:
        if not plan.button:
            return _page(plan.title, [
                alert(problem) if problem else None, *plan.says,
                h("p", link("Back", address(f"actions/{action.name}")))])
        token = self._tokens.make(calls.user.name, action.name, said)
        return _page(plan.title, [
            alert(problem) if problem else None,
            notice(NOTE, "Nothing has happened yet. If you confirm, this happens:"), *plan.says,
            h("form", hidden(CARRIED, json.dumps(values)), hidden("token", token),
              h("button", plan.button), h("button", "Change", name="change", value="1", class_="quiet"),
              action=address(f"actions/{action.name}"), method="post"),
        ], HTTPStatus.CONFLICT if problem else HTTPStatus.OK)

    def _done(self, user: str, given: Given) -> HttpAnswer:
        """Return the page of a job: how far it is, or its result."""
        job = self._jobs.get(given.text("job"), user)
        if job is None:
            return _page("Not found", [h("p", "This result is not kept any more, or it is of another user. The audit "
                                              "log has what was done.")], HTTPStatus.NOT_FOUND)
        if job.result is not None:
            return _page(f"{job.verdict}: {job.title}", [*job.result, h(
                "form", hidden(CARRIED, job.form), h("button", "Back to the form", name="change", value="1",
                                                     class_="quiet"),
                action=address(f"actions/{job.action}"), method="post")])
        token = self._tokens.make(user, "stop", {"job": job.number})
        return _page(f"Running: {job.title}", [
            h("p", f"{job.done:,} of {job.total:,}. It continues if you leave this page." if job.total
              else "It continues if you leave this page."),
            h("progress", max=job.total or 1, value=job.done, aria_label="How much is done"),
            h("form", hidden("job", job.number), hidden("token", token), h("button", "Stop before the next step"),
              action=address("actions/stop"), method="post") if job.total else None], reload_s=RELOAD_S)

    def _stop(self, user: str, given: Given) -> HttpAnswer:
        job = self._jobs.get(given.text("job"), user)
        if job is not None:
            try:
                self._tokens.check(given.text("token"), user, "stop", {"job": job.number})
            except TokenError as error:
                return _page("Not stopped", [alert(str(error))], HTTPStatus.CONFLICT)
            job.stopping = True
        to = address("actions/done", job=given.text("job")[:100])
        return _page("See the result", [], HTTPStatus.SEE_OTHER, headers={"Location": to})


def _carried(text: str, action: Action) -> dict[str, list[str]]:
    """Return the fields that a confirmation carries. Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict) or not all(
        name in action.fields and isinstance(values, list) and all(isinstance(value, str) for value in values)
        for name, values in found.items()
    ):
        raise ValueError("not the fields of the form")
    return found


def _page(
    title: str, content: list[Child], status: HTTPStatus = HTTPStatus.OK, *, reload_s: int = 0,
    headers: Mapping[str, str] | None = None,
) -> HttpAnswer:
    made = action_page(status, title, content, reload_s)
    return made._replace(headers={**_HEADERS, **(headers or {})})
