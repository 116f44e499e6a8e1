"""Log lines: text for a person at a terminal, JSON for a machine; with the ids of whose work it is, without secrets, and without the same warning again and again."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from guanaco_server.observability.redaction import Redaction
from guanaco_server.observability.scope import current_ids

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
QUIET = ("httpx", "httpx2", "huggingface_hub", "alembic", "dbos", "boto3", "botocore", "urllib3")
IDS = ("submission_id",)  # that a line may bring itself, as `extra`
REPEAT_S = 60.0
REMEMBERED = 1_000  # warnings

Warned = tuple[str, int, str, str, tuple[tuple[str, str], ...]]


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
            **_own_ids(record),
        }
        if record.exc_info:
            line["exception"] = self._redaction.clean(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def _own_ids(record: logging.LogRecord) -> dict[str, str]:
    return {name: record.__dict__[name] for name in IDS if name in record.__dict__}


@dataclass
class _Said:
    at: float
    times_more: int = 0


class Repeats(logging.Filter):
    """Lets a warning through once a minute; the next one after that says how often it was left out.

    While a database is away for 45 s, its loops would write 1,200 lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: OrderedDict[Warned, _Said] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        message = record.getMessage()
        error = repr(record.exc_info[1]) if record.exc_info else ""
        ids = tuple(sorted((current_ids() | _own_ids(record)).items()))
        warned = (record.name, record.levelno, message, error, ids)
        with self._lock:
            said = self._said.pop(warned, None)
            if said is not None and record.created - said.at < REPEAT_S:
                said.times_more += 1
                self._said[warned] = said
                return False
            self._said[warned] = _Said(record.created)
            if len(self._said) > REMEMBERED:
                self._said.popitem(last=False)
        if said is not None and said.times_more:
            record.msg, record.args = f"{message} (repeated {said.times_more} times since)", None
        return True


def configure(level: str, log_format: str, secrets: Iterable[str]) -> None:
    """The root logger, to stderr; once, at the entrance."""
    redaction = Redaction(secrets)
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(redaction) if log_format == "json" else TextFormatter(redaction)
    )
    handler.addFilter(Repeats())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
