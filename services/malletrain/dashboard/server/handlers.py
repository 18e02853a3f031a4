"""What is served beside the pages: the way in, files, and the data of figures."""

from __future__ import annotations

import asyncio
import math
import os
from dataclasses import replace
from urllib.parse import urlsplit

import grpc
import grpc.aio
import structlog
from tornado.web import HTTPError, RequestHandler

from malletrain.common.csv_text import as_csv
from malletrain.dashboard.figures import columns
from malletrain.dashboard.figures.columns import Columns
from malletrain.dashboard.identities import UnverifiableError, Viewer
from malletrain.dashboard.one_time_links import LIFESPAN_S
from malletrain.dashboard.pages import views
from malletrain.dashboard.pages.actions import MAX_REASON_LENGTH
from malletrain.dashboard.pages.compare_page import compared_columns
from malletrain.dashboard.pages.job_answers import journal_of, metrics_of, profile_of
from malletrain.dashboard.pages.job_page import metrics_columns
from malletrain.dashboard.pages.page import SharedData
from malletrain.dashboard.pages.plan_page import PlanPage
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.usage_page import rows_in, usage_of
from malletrain.dashboard.pages.week_views import has_rights
from malletrain.dashboard.pages.what_if import course_columns
from malletrain.dashboard.server.context import ServerContext
from malletrain.dashboard.server.link_peers import ends_of, objection
from malletrain.dashboard.server.page_access import harden
from malletrain.dashboard.templates import template
from malletrain.dashboard.templates.files import SCRIPTS, SCRIPTS_COOKIE, File, file_named
from malletrain.observer import intake
from malletrain.observer.history import History
from malletrain.observer.usage import MONTHLY, billing_columns
from malletrain.v1 import job_manager_pb2, job_manager_pb2_grpc, scavenger_pb2, scavenger_pb2_grpc

_ACTION_S = 30.0
"""How long a node is waited for until it is free."""
_HTTP_CODES = {grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.PERMISSION_DENIED: 403}


class _Plain(RequestHandler):
    def initialize(self, context: ServerContext) -> None:
        self.context = context

    def prepare(self) -> None:
        harden(self)

    def check_origin(self) -> None:
        """Refuse forms of other sites."""
        if urlsplit(self.request.headers.get("Origin", "")).netloc.lower() != self.request.host.lower():
            raise HTTPError(403)

    async def viewer(self) -> Viewer:
        """The viewer who makes the request; others are refused."""
        try:
            viewer = await self.context.viewers.verify(self.context.sessions.token(self.request))
        except UnverifiableError:
            raise HTTPError(503) from None
        if viewer is None:
            raise HTTPError(401)
        return viewer

    def deny(self, heading: str, text: str, status: int, following: str = "") -> None:
        self.set_status(status)
        self.finish(template("denied.html").render(heading=heading, text=text, next=following))


class Login(_Plain):
    """Takes the token of the form, and gives a cookie for it.

    A link only fills in the form: any site can have a browser open a link, or load it as a picture, and its reader
    would look at the pages as somebody else.
    """

    async def get(self) -> None:
        """The form; with the token of a link, if it has one, or with the code that stands for one."""
        code = self.get_query_argument("once", "")
        if code:
            await self._offer(code)
            return
        token = self.get_query_argument("token", "")
        if not token:
            self.deny("No token", "Open the link that you were given, or enter a viewer's token.", 401)
            return
        viewer = await self._verify(token)
        if viewer is not None:
            self.finish(template("denied.html").render(heading="Welcome", text=_welcome(viewer), next="", token=token))

    async def post(self) -> None:
        """The form. A link that lets one browser in is used up by it, not by a look at it."""
        self.check_origin()
        code = self.get_body_argument("once", "")
        if code:
            await self._enter_by_link(code)
            return
        token = self.get_body_argument("token", "").strip()
        viewer = await self._verify(token)
        if viewer is not None:
            self._let_in(viewer, token)

    async def _offer(self, code: str) -> None:
        """The form of a link, to the browser that opens it first."""
        token = await self._token_of_link(code)
        viewer = await self._verify(token) if token else None
        if viewer is None:
            return
        mark = self.context.links.open(code, self._mark())
        if not mark:
            self._deny_other_browser(code)
            return
        self._set_cookie(self._mark_cookie, mark, seconds=LIFESPAN_S)
        self.finish(template("denied.html").render(heading="Welcome", text=_welcome(viewer), next="", code=code))

    async def _enter_by_link(self, code: str) -> None:
        """Let the browser in that has opened a link; the link is used up only if that is done."""
        links, mark = self.context.links, self._mark()
        token = await self._token_of_link(code)
        if not token:
            return
        if not links.is_for(code, mark):
            self._deny_other_browser(code)
            return
        viewer = await self._verify(token)
        if viewer is None:
            return
        if links.use(code, mark) == token:  # it may have been used while JobManager was asked
            self._let_in(viewer, token)
        else:
            self._deny_used_link()

    async def _token_of_link(self, code: str) -> str:
        """The token that a link stands for; empty where the caller may not use it, which the answer then says."""
        token = self.context.links.token(code)
        if not token:
            self._deny_used_link()
        return token if token and await self._is_of_our_account(code) else ""

    @property
    def _mark_cookie(self) -> str:
        return f"{self.context.sessions.cookie}_link"

    def _mark(self) -> str:
        cookie = self.request.cookies.get(self._mark_cookie)
        return cookie.value if cookie is not None else ""

    async def _is_of_our_account(self, code: str) -> bool:
        """Whether the caller may use a link; else the answer says why not. Not for codes that are not valid."""
        ends = ends_of(self.request)
        if ends is None:
            why = "whoever opened it has gone"
        else:
            why = await asyncio.to_thread(objection, ends, os.geteuid(), self.context.owner_of)
        if why:
            self._log_refusal(code, why)
            text = (
                "On this machine only a browser of the account that started the dashboard may use this link. "
                "Whoever else is to see the pages enters a token."
            )
            self.deny("Not this link", text, 403)
        return not why

    def _deny_used_link(self) -> None:
        text = (
            "This link has been used, or is too old. Another one: malletrain dashboard --link, where this one is from."
        )
        self.deny("Not this link", text, 401)

    def _deny_other_browser(self, code: str) -> None:
        self._log_refusal(code, "it was opened first by another browser, or by none that keeps cookies")
        text = (
            "This link is for the browser that opened it first, which must keep its cookie. "
            "If that was not you, somebody else has seen the link. "
            "Another one: malletrain dashboard --link, where this one is from."
        )
        self.deny("Not this link", text, 403)

    def _log_refusal(self, code: str, why: str) -> None:
        if self.context.links.refuse(code):
            log = structlog.get_logger(__name__)
            log.warning("a link that lets in one browser was refused", why=why, peer=self.request.remote_ip)

    def _set_cookie(self, name: str, value: str, seconds: float | None = None) -> None:
        """A cookie for our own pages alone."""
        secure = self.context.sessions.secure
        age = None if seconds is None else int(seconds)
        self.set_cookie(name, value, httponly=True, samesite="Strict", secure=secure, path="/", max_age=age)

    def log_exception(self, typ: object, value: BaseException | None, tb: object) -> None:
        """Say what has failed without the address, as Tornado would, which has the token or the code of a link."""
        del tb
        if not isinstance(value, HTTPError):
            structlog.get_logger(__name__).error("the way in has failed", error=repr(typ), exc_info=value)

    async def _verify(self, token: str) -> Viewer | None:
        """Whose token it is; None where nobody's, which the answer then says."""
        try:
            viewer = await self.context.viewers.verify(token)
        except UnverifiableError:
            self.deny("Not now", "JobManager does not answer, so that nobody can tell whose token it is.", 503)
            return None
        if viewer is None:
            self.deny("Wrong token", "The services do not accept this token: it may have expired or been revoked.", 401)
        return viewer

    def _let_in(self, viewer: Viewer, token: str) -> None:
        """Give a browser a cookie for a token that was verified."""
        sessions = self.context.sessions
        self._set_cookie(sessions.cookie, sessions.begin(token, viewer.user))
        # A page of our own leads on: a redirect that began on another site would not show a strict cookie.
        self.deny("Welcome", f"{viewer.user}, {viewer.role}.", 200, "/now")


def _welcome(viewer: Viewer) -> str:
    return f"Go on as {viewer.user}, {viewer.role}, if that is who you are."


class Root(_Plain):
    """Leads to the page Now."""

    def get(self) -> None:
        """Redirect."""
        self.redirect("/now")


class Alive(_Plain):
    """Says that the dashboard serves."""

    def get(self) -> None:
        """Answer 204: the dashboard serves."""
        self.set_status(204)


class Files(_Plain):
    """Styles and scripts of the pages."""

    def get(self, name: str) -> None:
        """A file; one whose address has its version may be kept for good."""
        file = file_named(name)
        if file is None:
            raise HTTPError(404)
        self.set_header("Content-Type", file.type)
        self.set_header("Vary", "Accept-Encoding")
        current = self.get_query_argument("v", "") == file.version
        self.set_header("Cache-Control", "public, max-age=31536000, immutable" if current else "no-cache")
        if name == SCRIPTS:
            self.set_cookie(SCRIPTS_COOKIE, file.version, httponly=True, samesite="Strict", path="/", expires_days=365)
        self.finish(self._encode(file))
        if name == SCRIPTS:
            self.context.scripts_asked.set()
            self.context.scripts_asked.clear()

    def _encode(self, file: File) -> bytes:
        if "gzip" not in self.request.headers.get("Accept-Encoding", ""):
            return file.content
        self.set_header("Content-Encoding", "gzip")
        return file.compressed


class Csv(_Plain):
    """The data of a figure."""

    async def get(self, page: str, name: str) -> None:
        """As CSV."""
        viewer, selection = await self.viewer(), Selection.of(self.request.arguments)
        try:
            data = await data_of(self.context.shared, viewer, page, name, selection)
        except grpc.aio.AioRpcError as error:
            raise HTTPError(_HTTP_CODES.get(error.code(), 503)) from None
        if data is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{name}.csv"')
        self.finish(as_csv(data))


class WhatIfs(_Plain):
    """The forms of the page Week: replay the past with these settings, or end the replay that runs."""

    async def post(self, action: str) -> None:
        """Do so, and lead back to the page, whose address then has the settings."""
        self.check_origin()
        viewer = await self.viewer()
        selection, replays = Selection.of(self.request.arguments), self.context.shared.replays
        what_if = selection.what_if or replays.present
        if action == "replay":
            again = bool(self.get_body_argument("again", "")) or not what_if.past
            what_if = replace(what_if, past=replays.past(again=True) if again else what_if.past)
            replays.start(what_if, viewer.user)
        elif replays.running is not None and has_rights(viewer.user, viewer.role, replays.running.user):
            replays.cancel()
        self.redirect(replace(selection, what_if=what_if).link("week"), status=303)


class Actions(_Plain):
    """What viewers do from a page, in their names, as the command does it: cancel a job, drain a node, resume it.

    Each needs the viewer's token again: browsers show a cookie to all ports of a host, so that another account there
    can have it. The services check who asks and write it to their audit logs.
    """

    async def post(self, action: str) -> None:
        """Do so, and lead back to the page; say why it was not done."""
        self.check_origin()
        viewer = await self.viewer()
        selection = Selection.of(self.request.body_arguments)
        back = selection.link("job") if action == "cancel" else selection.link("nodes")
        confirming = await self._confirming(viewer, back)
        if confirming is None:
            return
        try:
            await self._do(action, confirming, selection)
        except grpc.aio.AioRpcError as error:
            self._answer(
                "Not done", f"{error.details() or error.code().name}", _HTTP_CODES.get(error.code(), 503), back
            )
            return
        self.redirect(back, status=303)

    async def _confirming(self, viewer: Viewer, back: str) -> Viewer | None:
        """Whom the form's token stands for, if that is whoever looks at the page; None: the answer says why not."""
        try:
            confirming = await self.context.viewers.verify(self.get_body_argument("token", "").strip())
        except UnverifiableError:
            why, status = "JobManager does not answer, so that nobody can tell whose token it is.", 503
        else:
            if confirming is not None and confirming.user == viewer.user:
                return confirming
            why, status = "This needs your token again; the services do not accept the one given.", 401
            if confirming is not None:
                why, status = f"This needs a token of {viewer.user}; the one given is another user's.", 403
        self._answer("Not done", why, status, back)
        return None

    async def _do(self, action: str, viewer: Viewer, selection: Selection) -> None:
        channel, own = self.context.shared.watcher.channel, viewer.metadata
        if action == "cancel" and selection.job:
            jobs = job_manager_pb2_grpc.JobManagerServiceStub(channel("job_manager"))
            await jobs.CancelJob(
                job_manager_pb2.CancelJobRequest(job_id=selection.job), metadata=own, timeout=_ACTION_S
            )
            return
        if not selection.node or action == "cancel":
            raise HTTPError(400)
        nodes = scavenger_pb2_grpc.ScavengerServiceStub(channel("scavenger"))
        if action == "drain":
            reason = self.get_body_argument("reason", "")[:MAX_REASON_LENGTH]
            await nodes.DrainNodes(
                scavenger_pb2.DrainNodesRequest(nodes=[selection.node], reason=reason), metadata=own, timeout=_ACTION_S
            )
        else:
            await nodes.ResumeNodes(
                scavenger_pb2.ResumeNodesRequest(nodes=[selection.node]), metadata=own, timeout=_ACTION_S
            )

    def _answer(self, heading: str, text: str, status: int, back: str) -> None:
        self.set_status(status)
        self.finish(template("told.html").render(heading=heading, text=text, back=back))


async def data_of(shared: SharedData, viewer: Viewer, page: str, name: str, selection: Selection) -> Columns | None:
    """Data of a figure; of one over time in the shown period, at seconds since the epoch.

    Args:
        shared: What all viewers share.
        viewer: Who asks; what not everybody may see is asked for in the viewer's name.
        page: Name of the page.
        name: Name of the figure.
        selection: What is looked at.

    Returns:
        Columns; None where there is no such figure.

    Raises:
        grpc.aio.AioRpcError: a service refuses, or does not answer.
    """
    history = shared.watched.history
    match page:
        case "now":
            data = _of_now(history, name, selection)
        case "job":
            data = await _of_job(shared, viewer, name, selection.job)
        case "compare" if name == "compare":
            return await compared_columns(shared, viewer, selection) if selection.group else None
        case "plan" if name == "worth":
            data = _worth(shared, selection)
        case "usage" if name in ("monthly", "all"):
            return await _usage(shared, viewer, selection.month if name == "monthly" else "")
        case "week" if name == "course":
            return _course(shared, selection)
        case "nodes" if name in ("survival", "stay"):
            data = columns.survival_columns(*views.idle_lengths(history))
        case _:
            data = None
    return columns.in_period(data, *selection.period(history.now)) if data is not None else None


def _of_now(history: History, name: str, selection: Selection) -> Columns | None:
    match name:
        case "nodes":
            since, until = selection.period(history.now)
            fragments = [item for item in history.fragments if item.start < until and (item.end or until) > since]
            return {
                "node": [item.node for item in fragments],
                "job": [" ".join(item.jobs) for item in fragments],
                "from_unix_s": [item.start for item in fragments],
                "until_unix_s": [item.end if item.end is not None else "" for item in fragments],
            }
        case "use":
            return columns.minute_columns(history.minutes, history.now)
        case "samples":
            return columns.sample_columns(history.utilization)
        case "releases":
            return columns.release_columns(history)
    return None


async def _of_job(shared: SharedData, viewer: Viewer, name: str, job_id: str) -> Columns | None:
    history = shared.watched.history
    match name:
        case "metrics":
            return metrics_columns(await metrics_of(shared.watcher, viewer, job_id, 0)) if job_id else None
        case "scale":
            rows = await journal_of(shared.watcher, viewer, job_id) if job_id else ()
            return columns.change_columns(map(intake.held_fact, rows))
        case "rate":
            return columns.rate_columns(history.rates.get(job_id, ()))
        case "curve":
            known = history.curves.get(job_id)
            if known is None and job_id:
                known = await profile_of(shared.watcher, viewer, job_id)
            return columns.curve_rows(known)
        case "stalls":
            return columns.stall_columns(history.stalls.get(job_id, ()))
    return None


async def _usage(shared: SharedData, viewer: Viewer, month: str) -> Columns:
    parts = await usage_of(shared.watcher, viewer, MONTHLY, month)
    return billing_columns(rows_in(parts), parts[-1].currency)


def _worth(shared: SharedData, selection: Selection) -> Columns:
    plan = PlanPage.known_to(shared, selection.plan)
    values = PlanPage.values_in(shared, plan) if plan is not None else None
    known = values.jobs if values is not None else ()
    return {
        "job": [value.job_id for value in known],
        "nodes": [value.nodes for value in known],
        "one_more": [value.one_more for value in known],
        "one_fewer": [value.one_fewer for value in known],
    }


def _course(shared: SharedData, selection: Selection) -> Columns | None:
    comparison = shared.replays.result_of(selection.what_if) if selection.what_if is not None else None
    return columns.in_period(course_columns(comparison), 0.0, math.inf) if comparison is not None else None
