"""The chat page: consent, a character, a conversation, a rating. Works with plain forms; streams where scripts run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Annotated, Self
from urllib.parse import urlencode

from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from guanaco.chat import MessageRequest
from guanaco.duels import BattleRequest, DuelVoteRequest
from guanaco.errors import Conflict, InvalidInput
from guanaco.errors.validation import one_sentence
from guanaco.feedback import FeedbackRequest, Rating
from guanaco_server.characters.service import File
from guanaco_server.http.errors import as_guanaco_error, status_of
from guanaco_server.http.routes import Routes
from guanaco_server.http.sse import HEARTBEAT, encode_event, event_stream
from guanaco_server.web.access.guards import Guest
from guanaco_server.web.access.throttle import Throttle, network_of
from guanaco_server.web.chat.beta_chat import Chat
from guanaco_server.web.chat.ongoing import FinishedReply, FollowedEvents
from guanaco_server.web.page_route import EVENT_STREAM
from guanaco_server.web.rendering import SECURITY_HEADERS, see_other
from guanaco_server.web.room import WebRoom

CONSENTS, WITHIN_S = 60, 600.0  # of one network, which a whole office may share
CONSENTS_A_DAY, DAY_S = 150, 86_400.0  # each is a user with a vote
MAX_TURN_CHARS = 64
MAX_MODEL_CHARS = 256
ModelName = Annotated[str, Query(max_length=MAX_MODEL_CHARS)]
THUMBS = {"up": True, "down": False, "none": None}


def add_routes(routes: Routes, web: WebRoom) -> None:
    guest_of = web.guards.guest()
    throttles = [
        Throttle(attempts, within_s, lambda: web.clock.now().timestamp())
        for attempts, within_s in ((CONSENTS, WITHIN_S), (CONSENTS_A_DAY, DAY_S))
    ]

    @routes.get("/chat")
    async def show_start(
        request: Request, model: ModelName = "", guest: Guest = guest_of
    ) -> Response:
        chosen = await web.chat.require_model(guest.account, model) if model else None
        if guest.visitor is None:
            return web.pages.show(request, "chat_consent.html", chosen=chosen)
        chats = await web.chat.chats(guest.visitor)
        return web.pages.show(
            request,
            "chat_home.html",
            offered_characters=await web.chat.offered.list_all(),
            chats=chats,
            chosen=chosen,
            token=guest.form_token,
        )

    @routes.post("/chat/consent")
    async def consent(
        request: Request, fields: dict[str, str] = web.guards.stranger_form()
    ) -> Response:
        model = fields.get("model", "")[:MAX_MODEL_CHARS]
        start = f"/chat?{urlencode({'model': model})}" if model else "/chat"
        if fields.get("consent") != "yes":
            return see_other(start)
        network = network_of(request.client.host if request.client else "")
        for throttle in throttles:
            throttle.require_room(network)
        for throttle in throttles:
            throttle.note(network)
        answer = see_other(start)
        web.guards.keep_visitor(answer, request, await web.chat.consent())
        return answer

    @routes.get("/chat/forget")
    async def ask(request: Request, guest: Guest = guest_of) -> Response:
        if guest.visitor is None:
            return see_other("/chat")
        return web.pages.show(request, "chat_forget.html", token=guest.form_token)

    @routes.post("/chat/forget")
    async def forget(request: Request, guest: Guest = guest_of) -> Response:
        await web.chat.forget(guest.require_visitor())
        answer = web.pages.show(request, "chat_forgotten.html")
        web.guards.drop_visitor(answer)
        return answer

    @routes.post("/chat/open")
    async def open_conversation(guest: Guest = guest_of) -> Response:
        visitor, model = guest.require_visitor(), guest.fields.get("model")
        chosen = await web.chat.require_model(guest.account, model) if model else None
        conversation_id = await web.chat.open(visitor, guest.fields.get("bot", ""), chosen)
        return see_other(f"/chat/{conversation_id}")

    @routes.get("/chat/pictures/{key}")
    async def read_offered_picture(key: str, guest: Guest = guest_of) -> Response:
        guest.require_visitor()
        return _picture(await web.chat.offered.picture_of(key))

    @routes.get("/chat/{conversation_id}/picture")
    async def read_picture(conversation_id: str, guest: Guest = guest_of) -> Response:
        return _picture(await web.chat.picture(guest.require_visitor(), conversation_id))

    @routes.get("/chat/{conversation_id}")
    async def read_conversation(
        request: Request, conversation_id: str, guest: Guest = guest_of
    ) -> Response:
        if guest.visitor is None:
            return see_other("/chat")
        chat = await web.chat.read(guest.visitor, conversation_id)
        return _show_chat(web, request, chat, guest.form_token, RatingForm.of(chat.rating))

    @routes.post("/chat/{conversation_id}/messages")
    async def send(request: Request, conversation_id: str, guest: Guest = guest_of) -> Response:
        visitor, turn = guest.require_visitor(), _turn(guest)
        message = _message(guest.fields.get("content", ""))
        reply = await web.chat.send(visitor, conversation_id, message, turn)
        return await _answer(request, conversation_id, reply.follow())

    @routes.post("/chat/{conversation_id}/regenerate")
    async def regenerate(
        request: Request, conversation_id: str, guest: Guest = guest_of
    ) -> Response:
        visitor, turn = guest.require_visitor(), _turn(guest)
        reply = await web.chat.regenerate(visitor, conversation_id, turn)
        return await _answer(request, conversation_id, reply.follow())

    @routes.post("/chat/{conversation_id}/edit")
    async def edit(request: Request, conversation_id: str, guest: Guest = guest_of) -> Response:
        visitor, turn = guest.require_visitor(), _turn(guest)
        message = _message(guest.fields.get("content", ""))
        edited = guest.fields.get("message", "")
        reply = await web.chat.edit(visitor, conversation_id, edited, message, turn)
        return await _answer(request, conversation_id, reply.follow())

    @routes.post("/chat/{conversation_id}/battle")
    async def battle(request: Request, conversation_id: str, guest: Guest = guest_of) -> Response:
        visitor = guest.require_visitor()
        content = _message(guest.fields.get("content", "")).content
        asked = BattleRequest(content=content)
        reply = await web.chat.battle(visitor, conversation_id, asked, _turn(guest))
        return await _answer(request, conversation_id, reply.follow())

    @routes.post("/chat/{conversation_id}/vote")
    async def vote(conversation_id: str, guest: Guest = guest_of) -> Response:
        visitor = guest.require_visitor()
        try:
            request = DuelVoteRequest.model_validate({"outcome": guest.fields.get("outcome")})
        except ValidationError:
            raise InvalidInput("Say which answer is better.") from None
        await web.chat.vote(visitor, conversation_id, guest.fields.get("battle", ""), request)
        return see_other(f"/chat/{conversation_id}#last")

    @routes.post("/chat/{conversation_id}/stop")
    async def stop(conversation_id: str, guest: Guest = guest_of) -> Response:
        await web.chat.stop(guest.require_visitor(), conversation_id, _turn(guest))
        return see_other(f"/chat/{conversation_id}#last")

    @routes.post("/chat/{conversation_id}/choice")
    async def choose(conversation_id: str, guest: Guest = guest_of) -> Response:
        chosen = guest.fields.get("message", "")
        await web.chat.choose(guest.require_visitor(), conversation_id, chosen)
        return see_other(f"/chat/{conversation_id}#last")

    @routes.post("/chat/{conversation_id}/judgement")
    async def judge(conversation_id: str, guest: Guest = guest_of) -> Response:
        visitor = guest.require_visitor()
        thumb, _, message_id = guest.fields.get("judged", "").partition(" ")
        if thumb not in THUMBS:
            raise InvalidInput("Choose thumbs up or thumbs down.")
        await web.chat.judge(visitor, conversation_id, message_id, THUMBS[thumb])
        return see_other(f"/chat/{conversation_id}#{message_id}")

    @routes.get("/chat/{conversation_id}/reply")
    async def follow(conversation_id: str, after: str = "", guest: Guest = guest_of) -> Response:
        events = await web.chat.follow(guest.require_visitor(), conversation_id, after)
        return event_stream(_encoded(events))

    @routes.post("/chat/{conversation_id}/rating")
    async def rate(request: Request, conversation_id: str, guest: Guest = guest_of) -> Response:
        visitor = guest.require_visitor()
        chat = await web.chat.read(visitor, conversation_id)
        form = RatingForm.of(chat.rating).filled(guest.fields)
        try:
            await web.chat.rate(visitor, conversation_id, form.request())
        except (InvalidInput, Conflict) as error:
            form = replace(form, problem=" ".join(filter(None, (error.detail, error.hint))))
            status = status_of(error)
            return _show_chat(web, request, chat, guest.form_token, form, status)
        return see_other(f"/chat/{conversation_id}#rating")


@dataclass(frozen=True)
class RatingForm:
    """The content of the form for a rating: what was given before, or what was sent and cannot be taken."""

    thumb: str = ""
    text: str = ""
    may_be_quoted: bool = False
    problem: str = ""

    @classmethod
    def of(cls, rating: Rating | None) -> Self:
        if rating is None:
            return cls()
        return cls("up" if rating.thumbs_up else "down", rating.text, rating.may_be_quoted)

    def filled(self, fields: dict[str, str]) -> Self:
        """Return the form with what was sent. What was left out stays as it was."""
        text = fields.get("text")
        return replace(
            self,
            thumb=fields.get("thumb") or self.thumb,
            text=self.text if text is None else text.strip(),
            may_be_quoted=self.may_be_quoted
            if text is None
            else fields.get("may_be_quoted") == "yes",
        )

    def request(self) -> FeedbackRequest:
        """Return the rating; InvalidInput where it is none."""
        if self.thumb not in ("up", "down"):
            raise InvalidInput(
                "Choose thumbs up or thumbs down: words alone are no rating."
                if self.text
                else "Choose thumbs up or thumbs down."
            )
        if "\x00" in self.text:
            raise InvalidInput("The words hold a character that cannot be stored.")
        try:
            return FeedbackRequest(
                thumbs_up=self.thumb == "up",
                text=self.text,
                may_be_quoted=bool(self.text) and self.may_be_quoted,
            )
        except ValidationError as error:
            raise InvalidInput(one_sentence(error)) from None


def _show_chat(
    web: WebRoom, request: Request, chat: Chat, token: str, form: RatingForm, status: int = 200
) -> Response:
    return web.pages.show(request, "chat.html", status=status, chat=chat, token=token, rating=form)


def _picture(file: File) -> Response:
    """Return a stranger's picture, which no browser takes for a page."""
    headers = SECURITY_HEADERS | {
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, max-age=300",
    }
    return Response(file.content, media_type=file.media_type, headers=headers)


async def _answer(request: Request, conversation_id: str, events: FollowedEvents) -> Response:
    if EVENT_STREAM in request.headers.get("accept", ""):
        return event_stream(_encoded(events))
    async for _ in events:  # a page without JavaScript waits for the whole reply
        pass
    return see_other(f"/chat/{conversation_id}#last")


async def _encoded(events: FollowedEvents) -> AsyncIterator[bytes]:
    """Text and nothing else: neither usage nor timings, which could tell models apart."""
    try:
        async for event in events:
            if isinstance(event, FinishedReply):
                done = {"text": event.text, "id": event.message_id, "rate": event.asks_for_rating}
                yield encode_event("done", done | ({"battle": True} if event.is_battle else {}))
            elif event is None:
                yield HEARTBEAT
            else:
                side = {"side": event.side} if event.side else {}
                yield encode_event("token", {"text": event.text} | side)
    except Exception as fault:  # noqa: BLE001 - the status is sent already: the stream itself has to say it
        error = as_guanaco_error("a reply on the chat page", fault)
        yield encode_event("error", {"detail": error.detail, "hint": error.hint})
    finally:
        await events.aclose()


def _turn(guest: Guest) -> str:
    """Name the turn of a page with scripts."""
    return guest.fields.get("turn", "")[:MAX_TURN_CHARS]


def _message(content: str) -> MessageRequest:
    if "\x00" in content:
        raise InvalidInput("The message holds a character that cannot be stored.")
    try:
        return MessageRequest(content=content.strip())
    except ValidationError:
        sentence = "Write something first." if not content.strip() else "That message is too long."
        raise InvalidInput(sentence) from None
