"""Log lines: text for a person at a terminal, JSON for a machine; with the ids of whose work it is, and without secrets.

What is a secret: every secret setting's value, anything that looks like an API key, the password in a URL, and the
signature of a presigned one.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from guanaco_server.observability.scope import current_ids

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
QUIET = ("httpx", "httpx2", "huggingface_hub", "alembic", "dbos", "boto3", "botocore", "urllib3")
IDS = ("submission_id",)  # that a line may bring itself, as `extra`
MASK = "***"
MIN_SECRET_CHARS = 6  # a shorter one would mask ordinary words
KEY = re.compile(r"(gk_[A-Za-z0-9]+_)[A-Za-z0-9_-]+|(hf_)[A-Za-z0-9]{8,}")
URL_PASSWORD = re.compile(r"(://[^\s:/@]*:)[^\s@/]+@")
SIGNATURE = re.compile(
    r"((?:X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|Signature)=)[^\s&\"']+"
)


class Redaction:
    """Takes secrets out of a text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
        self._secrets = sorted(long_enough, key=len, reverse=True)

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = KEY.sub(lambda found: f"{found[1] or found[2]}{MASK}", text)
        return SIGNATURE.sub(rf"\1{MASK}", URL_PASSWORD.sub(rf"\1{MASK}@", text))


class TextFormatter(logging.Formatter):
    def __init__(self, redaction: Redaction) -> None:
        super().__init__(TEXT_FORMAT)
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        return self._redaction.clean(super().format(record))


class JsonFormatter(logging.Formatter):
    """One object a line: ``time``, ``level``, ``logger``, ``message``, the ids, and ``exception`` where there is one."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redaction.clean(record.getMessage()),
            **current_ids(),
            **{name: record.__dict__[name] for name in IDS if name in record.__dict__},
        }
        if record.exc_info:
            line["exception"] = self._redaction.clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, log_format: str, secrets: Iterable[str]) -> None:
    """The root logger, to stderr; once, at the entrance."""
    redaction = Redaction(secrets)
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(redaction) if log_format == "json" else TextFormatter(redaction)
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
