"""Puts the pages beside the API: ``include_web(app, web)``."""

from __future__ import annotations

from fastapi import FastAPI

from guanaco_server.http.routes import Routes, add_routes
from guanaco_server.web.page_route import install_error_pages, page_route
from guanaco_server.web.pages import chat, leaderboard, reference, session, static
from guanaco_server.web.pages.developer import (
    feedback,
    lifecycle,
    quotas,
    submission_log,
    submissions,
    submitting,
)
from guanaco_server.web.pages.operator import (
    admin,
    competitions,
    costs,
    experiments,
    keys,
    reliability,
    votes,
)
from guanaco_server.web.room import WebRoom


def include_web(app: FastAPI, web: WebRoom) -> None:
    """Pages are no part of the published API, and their errors are pages."""
    install_error_pages(app, web.pages)
    route_class = page_route(web.pages, has_replica=web.has_replica)
    for room in (
        leaderboard,
        session,
        submitting,  # before submissions: /submissions/new is no submission
        submissions,
        submission_log,
        feedback,
        lifecycle,
        chat,
        admin,
        keys,
        quotas,
        competitions,
        costs,
        reliability,
        experiments,
        votes,
        reference,
        static,
    ):
        routes = Routes(route_class=route_class, include_in_schema=False)
        room.add_routes(routes, web)
        add_routes(app, routes)
