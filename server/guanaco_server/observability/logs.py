"""Log lines: text for a person at a terminal, JSON for a machine; with the ids of whose work it is, and without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from guanaco_server.observability.redaction import Redaction
from guanaco_server.observability.scope import current_ids

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
QUIET = ("httpx", "httpx2", "huggingface_hub", "alembic", "dbos", "boto3", "botocore", "urllib3")
IDS = ("submission_id",)  # that a line may bring itself, as `extra`


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
