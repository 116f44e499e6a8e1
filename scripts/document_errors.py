"""Writes docs/troubleshooting.md from the error tree; a test fails when the two differ. Usage: make docs"""

from __future__ import annotations

from pathlib import Path

from guanaco.errors import error_classes
from guanaco.errors.remedies import REMEDIES

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
HEAD = """\
# Troubleshooting

Every error has a code. The HTTP API answers with `{"error": code, "detail": sentence, "hint": what to do}`, the SDK raises the class of
`guanaco.errors` that is named beside the code, and the command line prints the sentence and the hint. Look a code up here for its cause and
cure; what an operator does about alerts is in the [runbooks](runbooks.md).

The first things to try: `guanaco doctor` says what is missing on this machine, `guanaco status ID` where a submission stands, and
`guanaco logs ID --verbose` what happened to it.

This page is written by `make docs` from `guanaco/errors/`.

| code | class | cause | what to do |
| --- | --- | --- | --- |
"""


def page() -> str:
    rows = (
        f"| `{code}` | `{kind.__name__}` | {REMEDIES[code].cause} | {REMEDIES[code].cure} |\n"
        for code, kind in sorted(error_classes().items())
    )
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
