"""`guanaco login`, `whoami`, `logout`, `keys`, `users` and `audit`: who may use the platform, and what admins did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from guanaco_cli import words
from guanaco_cli.connection import connect, transport
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, Yes, read_secret

if TYPE_CHECKING:
    from guanaco.quotas import Quota

app = typer.Typer()


@app.command(epilog="Example: guanaco login --url https://guanaco.example.com")
def login(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The server. [default: the profile's]", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="The API key; asked for, unseen, when not given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Store the server and your API key, after trying them."""
    from guanaco.client import Client
    from guanaco.profile import DEFAULT_URL, Profile, profile_path

    url = url or typer.prompt("Server", default=DEFAULT_URL, err=True)
    key = key or read_secret("API key", "Give it with --key, or as a line of stdin.")
    profile = Profile(url, key.strip())
    with Client(profile.url, profile.key, transport=transport.get()) as client:
        identity = client.me()
    path = profile_path()
    profile.save(path)
    console.say(f"You are {identity.name} ({identity.role}) at {profile.url}; stored in {path}.")


@app.command(epilog="Example: guanaco whoami --json")
def whoami(as_json: AsJson = False) -> None:
    """Show whose key is stored, and for which server."""
    with connect() as client:
        identity = client.me()
        url = client.transport.url
    if as_json:
        console.json({"url": url, **identity.model_dump(mode="json")})
    else:
        console.line(f"{identity.name} ({identity.role}) at {url}")


@app.command(epilog="Example: guanaco logout")
def logout() -> None:
    """Delete the stored server and API key from this machine.

    The key itself goes on working.
    """
    import os

    from guanaco.profile import delete_profile, profile_path

    path = profile_path()
    if delete_profile(path):
        console.say(f"Deleted {path}. `guanaco keys revoke` (admin) ends the key itself.")
    else:
        console.say(f"There is no {path}: nobody is logged in.")
    if os.environ.get("GUANACO_API_KEY"):
        console.warn("GUANACO_API_KEY is set, and commands go on using it.")


keys_app = typer.Typer(no_args_is_help=True)


@keys_app.command(epilog="Example: guanaco keys create --role developer --name alice")
def create(
    role: Annotated[Literal["developer", "backend", "admin"], typer.Option(help="What it may do.")],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The account that it belongs to; made if new.")
    ],
    may_choose_models: Annotated[
        bool,
        typer.Option(
            "--may-choose-models",
            help="A backend's: it may open conversations with a submission that it names.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it, once."""
    with connect() as client:
        created = client.create_key(name, role, may_choose_models=may_choose_models)
    if as_json:
        console.json(created)
        return
    console.line(created.key)
    console.say(f"The key of {created.name} ({created.role}, id {created.id}) is shown only now.")


@keys_app.command("list", epilog="Example: guanaco keys list --json")
def list_keys(as_json: AsJson = False) -> None:
    """List every key, without its secret."""
    with connect() as client:
        keys = client.keys()
    if as_json:
        console.json(keys)
        return
    console.table(
        ("id", "name", "role", "created", "last used", "revoked"),
        [
            (
                key.id,
                key.name,
                f"{key.role}, chooses models" if key.may_choose_models else key.role,
                words.moment(key.created_at),
                words.moment(key.last_used_at) or "never",
                words.moment(key.revoked_at),
            )
            for key in keys
        ],
    )


@keys_app.command(epilog="Example: guanaco keys revoke 3f2a9c --yes")
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The key's id, from `guanaco keys list`.")
    ],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: from now on it opens nothing."""
    console.confirm(f"Revoke the key {key_id} for good?", yes=yes)
    with connect() as client:
        key = client.revoke_key(key_id)
    if as_json:
        console.json(key)
    else:
        console.say(f"Revoked {key.id} of {key.name}.")


quota_app = typer.Typer(invoke_without_command=True)


@quota_app.callback(epilog="Example: guanaco quota --account alice")
def quota(
    context: typer.Context,
    account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another developer's (admin).", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show your limits and what is left of them; `set` changes a developer's (admin)."""
    if context.invoked_subcommand is None:
        with connect() as client:
            _print_quota(client.quota(account), as_json)


@quota_app.command("set", epilog="Example: guanaco quota set alice --live 50 --per-hour 0")
def set_quota(
    account: Annotated[str, typer.Argument(metavar="NAME", help="The developer's account.")],
    per_hour: Annotated[
        int | None, typer.Option(min=0, help="Submissions and redeploys within an hour.")
    ] = None,
    live: Annotated[
        int | None, typer.Option(min=0, help="Submissions that are live or on their way.")
    ] = None,
    in_progress: Annotated[
        int | None, typer.Option(min=0, help="Submissions in the queue and the pipeline.")
    ] = None,
    artifact_bytes: Annotated[
        int | None, typer.Option(min=0, help="Bytes of weights of those submissions.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set a developer's limits (admin).

    This replaces all limits: 0 is no limit, and one that is left out is the platform's own.
    """
    with connect() as client:
        quota = client.set_quota(
            account,
            per_hour=per_hour,
            live=live,
            in_progress=in_progress,
            artifact_bytes=artifact_bytes,
        )
    _print_quota(quota, as_json)


def _print_quota(quota: Quota, as_json: bool) -> None:
    if as_json:
        console.json(quota)
        return
    uses = (
        ("submissions within an hour", quota.per_hour),
        ("live, or on their way", quota.live),
        ("in the queue and the pipeline", quota.in_progress),
        ("bytes of weights", quota.artifact_bytes),
    )
    console.table(
        (quota.account, "used", "limit", "left"),
        [
            (
                what,
                f"{use.used:,}",
                "none" if use.limit is None else f"{use.limit:,}",
                "" if use.left is None else f"{use.left:,}",
            )
            for what, use in uses
        ],
    )
    if quota.next_submission_at is not None:
        console.say(f"The next submission is possible at {words.moment(quota.next_submission_at)}.")


users_app = typer.Typer(no_args_is_help=True)
audit_app = typer.Typer()


@users_app.callback()
def users() -> None:
    """Keep `erase` a command of its own, though it is the only one."""


@users_app.command(epilog="Example: guanaco users erase user-17 --account my-app")
def erase(
    user_id: Annotated[
        str, typer.Argument(metavar="USER_ID", help="The app's own id of the user.")
    ],
    account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The backend's account, where several have it."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase a user's conversations and ratings for good (admin)."""
    console.confirm("Erase all that this user said? It cannot be undone.", yes=yes)
    with connect() as client:
        erased = client.erase_user(user_id, account=account)
    if as_json:
        console.json(erased)
        return
    console.say(erased.summary)


@audit_app.command(epilog="Example: guanaco audit --limit 20")
def audit(
    limit: Annotated[int, typer.Option(min=1, max=500, help="Entries at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the audit log, newest first (admin).

    It holds what admins did: reading or erasing users' data, keys, competitions, others' submissions.
    """
    with connect() as client:
        page = client.audit(limit=limit)
    if as_json:
        console.json(page.items)
        return
    console.table(
        ("when", "account", "did", "to"),
        [(words.moment(one.at), one.account, one.action, one.subject) for one in page.items],
    )
