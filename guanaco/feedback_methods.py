"""Methods of the clients for feedback beyond single calls: iterate over it, frame it, download it. A part of client.py."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from guanaco.calls import feedback as feedback_calls
from guanaco.calls.wire import Request, described
from guanaco.errors import InvalidInput, LibraryMissing
from guanaco.feedback import ExportFormat, Feedback, FeedbackPage

if TYPE_CHECKING:
    from guanaco.transport import AsyncTransport, SyncTransport

FrameLibrary = Literal["pandas", "polars"]

SUFFIXES: dict[str, ExportFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


class Filters(TypedDict, total=False):
    """The fields of FeedbackFilter, which says what each means."""

    rating: Literal["up", "down"] | None
    search: str | None
    bot: str | None
    user: str | None
    since: datetime | None
    until: datetime | None
    min_length: int | None
    max_length: int | None


class FeedbackMethods:
    transport: SyncTransport

    def feedback(
        self, submission_id: str, *, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> Generator[Feedback, None, None]:
        """Iterate over the feedback of a submission that passes the filters, oldest first.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            cursor: Begins behind an earlier page; what ``export_feedback`` returned.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Yields:
            A Feedback for each rating; pages are fetched as they are needed.

        Raises:
            SubmissionNotFound: There is no such submission, or it is another developer's.
            InvalidInput: A filter makes no sense.
        """
        for page in self.feedback_pages(submission_id, cursor=cursor, **filters):
            yield from page.items

    def feedback_pages(
        self, submission_id: str, *, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> Generator[FeedbackPage, None, None]:
        """Iterate over the pages of a submission's feedback.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            cursor: Begins behind an earlier page.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Yields:
            A FeedbackPage. Its last ``next_cursor`` that is not None, kept, later leads to what is new.

        Raises:
            SubmissionNotFound: There is no such submission, or it is another developer's.
            InvalidInput: A filter makes no sense.
        """
        while True:
            page = self.transport.run(
                described(feedback_calls.feedback_page, submission_id, cursor=cursor, **filters)
            )
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    def feedback_frame(
        self,
        submission_id: str,
        *,
        library: FrameLibrary | None = None,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> Any:
        """Read a submission's feedback into a data frame, a row for each rating.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            library: ``"pandas"`` or ``"polars"``; without it pandas, if it is installed, else polars.
            cursor: Begins behind an earlier page.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Returns:
            A DataFrame of the library, with a column for each field of Feedback.

        Raises:
            LibraryMissing: The library is not installed.
            SubmissionNotFound: There is no such submission, or it is another developer's.
        """
        return frame_of(self.feedback(submission_id, cursor=cursor, **filters), library)

    def export_feedback(
        self,
        submission_id: str,
        path: str | os.PathLike[str],
        format: ExportFormat | None = None,
        *,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> str:
        """Write a submission's feedback into a file, whole or not at all.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            path: The file.
            format: ``"jsonl"``, ``"csv"`` or ``"parquet"``; without it the file's name says which.
            cursor: Begins behind what an earlier export wrote.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Returns:
            The cursor that later leads to what is new.

        Raises:
            InvalidInput: The file cannot be written or its name does not say which format it is, or a filter makes no sense.
            SubmissionNotFound: There is no such submission, or it is another developer's.
        """
        request = _export(submission_id, path, format, cursor, filters)
        with _atomic_file(Path(path)) as unfinished, unfinished.open("wb") as file:
            return self.transport.download(request, file)["X-Next-Cursor"]


class AsyncFeedbackMethods:
    transport: AsyncTransport

    async def feedback(
        self, submission_id: str, *, cursor: str | None = None, **filters: Unpack[Filters]
    ) -> AsyncGenerator[Feedback, None]:
        """Iterate over the feedback of a submission that passes the filters, oldest first.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            cursor: Begins behind an earlier page; what ``export_feedback`` returned.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Yields:
            A Feedback for each rating; pages are fetched as they are needed.

        Raises:
            SubmissionNotFound: There is no such submission, or it is another developer's.
            InvalidInput: A filter makes no sense.
        """
        while True:
            page = await self.transport.run(
                described(feedback_calls.feedback_page, submission_id, cursor=cursor, **filters)
            )
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return

    async def feedback_frame(
        self,
        submission_id: str,
        *,
        library: FrameLibrary | None = None,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> Any:
        """Read a submission's feedback into a data frame, a row for each rating.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            library: ``"pandas"`` or ``"polars"``; without it pandas, if it is installed, else polars.
            cursor: Begins behind an earlier page.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Returns:
            A DataFrame of the library, with a column for each field of Feedback.

        Raises:
            LibraryMissing: The library is not installed.
            SubmissionNotFound: There is no such submission, or it is another developer's.
        """
        found = [one async for one in self.feedback(submission_id, cursor=cursor, **filters)]
        return frame_of(found, library)

    async def export_feedback(
        self,
        submission_id: str,
        path: str | os.PathLike[str],
        format: ExportFormat | None = None,
        *,
        cursor: str | None = None,
        **filters: Unpack[Filters],
    ) -> str:
        """Write a submission's feedback into a file, whole or not at all.

        Args:
            submission_id: The submission's id, or an alias like ``org/model@champion``.
            path: The file.
            format: ``"jsonl"``, ``"csv"`` or ``"parquet"``; without it the file's name says which.
            cursor: Begins behind what an earlier export wrote.
            filters: The fields of :class:`guanaco.feedback.FeedbackFilter`: ``rating``, ``search``, ``bot``, ``user``,
                ``since``, ``until``, ``min_length``, ``max_length``.

        Returns:
            The cursor that later leads to what is new.

        Raises:
            InvalidInput: The file cannot be written or its name does not say which format it is, or a filter makes no sense.
            SubmissionNotFound: There is no such submission, or it is another developer's.
        """
        request = _export(submission_id, path, format, cursor, filters)
        with _atomic_file(Path(path)) as unfinished, unfinished.open("wb") as file:
            return (await self.transport.download(request, file))["X-Next-Cursor"]


class _atomic_file:  # noqa: N801 - used like a function
    """A file beside the wanted one, which takes its place in the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.part")

    def __enter__(self) -> Path:
        return self._unfinished

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        try:
            if error is None:
                self._unfinished.replace(self._path)
                return
        except OSError as refused:
            error = refused
        with suppress(OSError):
            self._unfinished.unlink()
        if isinstance(error, OSError):
            raise InvalidInput(f"{self._path} cannot be written: {error.strerror}.") from None


def _export(
    submission_id: str,
    path: str | os.PathLike[str],
    format: ExportFormat | None,
    cursor: str | None,
    filters: Filters,
) -> Request:
    return described(
        feedback_calls.export,
        submission_id,
        format=format or _format_of(path),
        cursor=cursor,
        **filters,
    )


def _format_of(path: str | os.PathLike[str]) -> ExportFormat:
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(
            f"{os.fspath(path)!r} does not say which format it is.",
            hint="Name it .jsonl, .csv or .parquet.",
        )
    return SUFFIXES[suffix]


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
                raise LibraryMissing("A data frame", "pandas") from None
    try:
        import polars
    except ImportError:
        raise LibraryMissing("A data frame", library or "pandas or polars") from None
    return polars
