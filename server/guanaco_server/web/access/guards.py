"""The guard of every page: public on purpose, or for a role; and of every form, that a page of ours sent it.

A developer's and an admin's browser shows a session's cookie, a beta user's their own. Forms of either carry the
token of that cookie (viewer.py); signing in and consenting have no cookie yet, and are held to their origin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request
from fastapi.responses import Response

from guanaco.accounts import Role
from guanaco.errors import Forbidden, Unauthenticated
from guanaco_server.accounts.service import Account
from guanaco_server.web import forms
from guanaco_server.web.access.sessions import NewSession, SessionService
from guanaco_server.web.access.viewer import NOBODY, Viewer, form_token
from guanaco_server.web.chat.beta_chat import BetaChat, Visitor
from guanaco_server.web.forms import FormKept

SESSION_COOKIE = "guanaco_session"
CHAT_COOKIE = "guanaco_chat"
CHAT_PATH = "/chat"
CHAT_DAYS = 180
GIVEN_BACK = "given_back"  # a field of the form that only asks for another form to be shown


@dataclass(frozen=True)
class Member:
    """Somebody signed in, with the role that the page is for; ``fields`` are those of a form.

    ``is_given_back``: the form was sent with a session that has ended since, and is to be shown again, not carried out.
    """

    account: Account
    fields: dict[str, str]
    is_given_back: bool = False


@dataclass(frozen=True)
class Guest:
    """A beta user on the chat page; ``visitor`` is None before they consented. ``account``: who is signed in besides."""

    visitor: Visitor | None
    fields: dict[str, str]
    cookie: str
    account: Account | None = None

    @property
    def form_token(self) -> str:
        return form_token(self.cookie)

    def require_visitor(self) -> Visitor:
        if self.visitor is None:
            raise Forbidden(
                "Your browser no longer has the cookie of this chat, or your agreement was withdrawn.",
                hint="Open the chat page: it asks you to agree again.",
            )
        return self.visitor


class Guards:
    def __init__(self, sessions: SessionService, chat: BetaChat, is_https: bool) -> None:
        self._sessions = sessions
        self._chat = chat
        self._is_https = is_https

    def public(self) -> Any:
        """Return a FastAPI dependency that gives the Viewer, whoever it is."""

        async def guard(request: Request) -> Viewer:
            return await self._look(request)

        return Depends(_marked(guard, is_public=True))

    def member(self, *roles: Role, keeps_form: bool = False) -> Any:
        """One that gives the Member; the public is sent to sign in.

        ``keeps_form``: a form that comes after its session has ended is not lost. The route shows it again where
        ``is_given_back`` says so.
        """
        allowed = frozenset(roles) | {Role.ADMIN}

        async def guard(request: Request) -> Member:
            viewer = await self._look(request)
            is_kept = keeps_form and request.method == "POST"
            if viewer.account is None:
                if is_kept:
                    raise await _kept_form(request)
                raise Unauthenticated("This page is for those who are signed in.")
            account = _require(viewer.account, allowed)
            if not is_kept:
                return Member(account, await _posted_fields(request, viewer.cookie))
            forms.require_same_origin(request)
            fields = await forms.read_form(request)
            if forms.TOKEN_FIELD not in fields:
                forms.require_token(fields, viewer.cookie)
            is_given_back = GIVEN_BACK in fields or not forms.has_token(fields, viewer.cookie)
            request.state.is_given_back = is_given_back
            return Member(
                account, forms.keepable(fields) if is_given_back else fields, is_given_back
            )

        return Depends(_marked(guard, roles=allowed))

    def guest(self) -> Any:
        """One that gives the Guest of the chat page."""

        async def guard(request: Request) -> Guest:
            account = (await self._look(request)).account
            cookie = request.cookies.get(CHAT_COOKIE, "")
            visitor = await self._chat.visitor(cookie) if cookie else None
            if visitor is None:
                return Guest(None, {}, "", account)
            return Guest(visitor, await _posted_fields(request, cookie), cookie, account)

        return Depends(_marked(guard, is_public=True))

    def stranger_form(self) -> Any:
        """One that gives the fields of a form that is sent before there is a cookie."""

        async def guard(request: Request) -> dict[str, str]:
            await self._look(request)
            forms.require_same_origin(request)
            return await forms.read_form(request)

        return Depends(_marked(guard, is_public=True))

    def keep_session(self, answer: Response, request: Request, new: NewSession) -> None:
        answer.set_cookie(
            SESSION_COOKIE,
            new.cookie,
            max_age=int(new.lifetime.total_seconds()),
            httponly=True,
            samesite="lax",
            secure=self._is_secure(request),
        )

    def keep_visitor(self, answer: Response, request: Request, cookie: str) -> None:
        answer.set_cookie(
            CHAT_COOKIE,
            cookie,
            max_age=CHAT_DAYS * 86_400,
            path=CHAT_PATH,
            httponly=True,
            samesite="lax",
            secure=self._is_secure(request),
        )

    def drop_session(self, answer: Response) -> None:
        answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="lax")

    def drop_visitor(self, answer: Response) -> None:
        answer.delete_cookie(CHAT_COOKIE, path=CHAT_PATH, httponly=True, samesite="lax")

    async def _look(self, request: Request) -> Viewer:
        """Find who is signed in, and keep it on the request, where an error's page finds it too."""
        cookie = request.cookies.get(SESSION_COOKIE, "")
        account = await self._sessions.account(cookie) if cookie else None
        viewer = Viewer(account, cookie) if account else NOBODY
        request.state.viewer = viewer
        return viewer

    def _is_secure(self, request: Request) -> bool:
        return self._is_https or request.url.scheme == "https"


async def _kept_form(request: Request) -> FormKept:
    forms.require_same_origin(request)
    return FormKept(request.url.path, await forms.read_form(request))


async def _posted_fields(request: Request, cookie: str) -> dict[str, str]:
    """A page that is read needs no check; a form is checked to be ours."""
    if request.method != "POST":
        return {}
    forms.require_same_origin(request)
    fields = await forms.read_form(request)
    forms.require_token(fields, cookie)
    return fields


def _require(account: Account, allowed: frozenset[Role]) -> Account:
    if account.role not in allowed:
        raise Forbidden(
            f"This page is for the role {' or '.join(sorted(allowed))}; you are signed in as {account.role}.",
            hint="Sign in with another key.",
        )
    return account


def _marked(
    guard: Callable[[Request], Awaitable[Any]], **marks: object
) -> Callable[[Request], Awaitable[Any]]:
    """Marks are read by the test that walks every route."""
    for name, mark in marks.items():
        setattr(guard, name, mark)
    return guard
