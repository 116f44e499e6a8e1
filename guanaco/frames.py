"""Feedback as a data frame, with whichever library is installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from guanaco.errors import LibraryMissing
from guanaco.feedback import Feedback

FrameLibrary = Literal["pandas", "polars"]

WHAT = "A data frame"


def frame_of(feedback: Iterable[Feedback], library: FrameLibrary | None = None) -> Any:
    """A row a rating; ``messages`` and ``params`` are nested. Without a choice pandas, else polars; LibraryMissing."""
    module = _module(library)
    rows, columns = [one.model_dump(mode="python") for one in feedback], list(Feedback.model_fields)
    if module.__name__ == "polars":
        if not rows:
            return module.DataFrame(schema=columns)
        return module.DataFrame(rows, infer_schema_length=None)
    return module.DataFrame(rows, columns=columns)


def _module(library: FrameLibrary | None) -> Any:
    if library in ("pandas", None):
        try:
            import pandas

            return pandas
        except ImportError:
            if library is not None:
                raise LibraryMissing(WHAT, "pandas") from None
    try:
        import polars
    except ImportError:
        raise LibraryMissing(WHAT, library or "pandas or polars") from None
    return polars
