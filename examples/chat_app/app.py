"""A small chat app on Guanaco: a page for people, whose messages go to a competing model and whose thumbs come back.

    GUANACO_URL=https://guanaco.example.com GUANACO_API_KEY=… python app.py --port 9000

It needs the package guanaco-platform, and a key with the role backend, which never leaves this server. People agree
first: without that nothing of theirs reaches the platform. They are not told which model they talk to.
"""

from __future__ import annotations

import argparse
import html
import secrets
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import guanaco

BOT = guanaco.Bot(
    name="Nia", memory="A cheerful lighthouse keeper.", first_message="Ahoy! Who goes there?"
)
COOKIE = "visitor"
MAX_FORM_BYTES = 20_000
PAGE = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Nia</title><h1>Nia</h1>{body}"""
CONSENT = """<p>You will talk to a model that is being tried out. What you write is kept, without your name, and shown to
its developer.</p><form method="post" action="/agree"><button>I agree</button></form>"""
CHAT = """<ol>{messages}</ol><form method="post" action="/say"><input name="content" required maxlength="4000" autofocus>
<button>Send</button></form><form method="post" action="/rate">What do you think of Nia?
<input name="text" maxlength="1000"><button name="thumb" value="up">Good</button>
<button name="thumb" value="down">Bad</button></form><p>{notice}</p>"""


@dataclass
class Visit:
    """One visitor's conversation."""

    conversation_id: str
    notice: str = ""


class ChatApp(ThreadingHTTPServer):
    """The server. It remembers only which conversation is whose; Guanaco keeps what was said."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, Handler)
        self.visits: dict[str, Visit] = {}


class Handler(BaseHTTPRequestHandler):
    """Answers one visitor's requests. Each form is answered by a redirect to the page."""

    server: ChatApp

    def do_GET(self) -> None:
        visit = self.server.visits.get(self._visitor())
        try:
            body = CONSENT if visit is None else self._chat(visit)
        except guanaco.GuanacoError as error:
            body = f"<p>{html.escape(str(error))}</p>"
        self._send(HTTPStatus.OK, PAGE.format(body=body))

    def do_POST(self) -> None:
        visitor = self._visitor() or secrets.token_urlsafe(16)
        form = self._form()
        visit = self.server.visits.get(visitor)
        try:
            if self.path == "/agree":
                self._agree(visitor)
            elif visit is not None and self.path == "/say":
                self._say(visit, form.get("content", ""))
            elif visit is not None and self.path == "/rate":
                self._rate(visit, form)
        except guanaco.GuanacoError as error:  # its text is a sentence for people
            if visit is not None:
                visit.notice = str(error)
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/")
        self.send_header("Set-Cookie", f"{COOKIE}={visitor}; HttpOnly; SameSite=Lax; Path=/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _agree(self, visitor: str) -> None:
        with guanaco.Client() as client:
            opened = client.open_conversation(visitor, BOT, consent=True)
        self.server.visits[visitor] = Visit(opened.conversation_id)

    def _say(self, visit: Visit, content: str) -> None:
        visit.notice = ""
        with (
            guanaco.Client() as client
        ):  # the key lets a message be sent again after a broken connection
            client.send(visit.conversation_id, content, idempotency_key=secrets.token_hex(16))

    def _rate(self, visit: Visit, form: dict[str, str]) -> None:
        with guanaco.Client() as client:
            client.rate(visit.conversation_id, form.get("thumb") == "up", form.get("text", ""))
        visit.notice = "Thank you!"

    def _chat(self, visit: Visit) -> str:
        with guanaco.Client() as client:
            said = client.conversation(visit.conversation_id).messages
        spoken = [("bot", BOT.first_message)]  # the platform counts it as a part of the bot
        spoken += [(message.sender.value, message.content) for message in said]
        lines = "".join(f"<li><b>{who}</b> {html.escape(text)}</li>" for who, text in spoken)
        return CHAT.format(messages=lines, notice=html.escape(visit.notice))

    def _visitor(self) -> str:
        cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        return cookie.value if cookie is not None else ""

    def _form(self) -> dict[str, str]:
        length = min(int(self.headers.get("Content-Length", 0)), MAX_FORM_BYTES)
        fields = parse_qs(self.rfile.read(length).decode("utf-8", "replace"))
        return {name: values[0] for name, values in fields.items()}

    def _send(self, status: HTTPStatus, page: str) -> None:
        data = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    with ChatApp(("127.0.0.1", parser.parse_args().port)) as app:
        print(f"Nia waits at http://127.0.0.1:{app.server_port}", flush=True)
        app.serve_forever()


if __name__ == "__main__":
    main()
