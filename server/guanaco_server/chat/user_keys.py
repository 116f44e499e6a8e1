"""Who a user is: backends number their users by themselves, so an id means somebody only together with its account."""

from __future__ import annotations

USER_KEY_CHARS = 32 + 1 + 128  # an account's id, a slash, the backend's id of the user


def user_key(account_id: str, user_id: str) -> str:
    """One user of one backend; an account's id has no slash."""
    return f"{account_id}/{user_id}"


def user_id_of(key: str) -> str:
    return key.partition("/")[2]
