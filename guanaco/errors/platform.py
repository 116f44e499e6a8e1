"""The errors that the platform, or this machine, causes. For `Unavailable` and below, a later retry can help."""

from __future__ import annotations

from typing import Self

from guanaco.errors.tree import GuanacoError


class Unavailable(GuanacoError):
    """``retry_after_s`` is where the error knows how long it may last."""

    code = "unavailable"
    retry_after_s: float | None = None


class TooManyConnections(Unavailable):
    code = "too_many_connections"

    def __init__(self) -> None:
        super().__init__(
            "There are too many connections, to this server or from your address.",
            hint="Close those that you do not need, and try again in a few seconds.",
        )


class NoModelAvailable(Unavailable):
    code = "no_model_available"

    def __init__(self) -> None:
        super().__init__(
            "No submission can take a conversation now.", hint="Try again when one is deployed."
        )


class ModelUnavailable(Unavailable):
    code = "model_unavailable"

    def __init__(self, submission_id: str, *, is_served: bool = True) -> None:
        """A submission that is not served has failed, was torn down or is still on its way."""
        if is_served:
            detail = f"The model server of {submission_id} does not answer now."
            hint = "It is restarted by itself: try again in a minute."
        else:
            detail = f"{submission_id} is not served now, so it cannot answer."
            hint = f"`guanaco status {submission_id}` says what became of it."
        super().__init__(detail, hint=hint)


class ModelWaking(Unavailable):
    code = "model_waking"

    def __init__(self, submission_id: str, waits_for: str | None, start_s: float | None) -> None:
        """``waits_for`` says why it does not start at once; ``start_s`` is how long its last start took."""
        why = f": {waits_for}" if waits_for else "."
        super().__init__(
            f"The model server of {submission_id} sleeps and is being started{why}",
            hint="Send the message again in a minute.",
        )
        self.retry_after_s = start_s


class Overloaded(Unavailable):
    code = "overloaded"
    retry_after_s = 2.0

    def __init__(
        self,
        why: str = "There are as many replies on their way as the model servers can hold.",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(why, hint="Try again in a few seconds.")
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s


class DatabaseUnavailable(Unavailable):
    code = "database_unavailable"
    retry_after_s = 2.0

    def __init__(self, why: str | None = None, *, hint: str | None = None) -> None:
        """``why`` is for the operator only: it may name the database's address."""
        super().__init__(
            f"The platform's database does not answer: {why}."
            if why
            else "The platform's database does not answer.",
            hint=hint or "Try again in a few seconds.",
        )

    @classmethod
    def without_room(cls) -> Self:
        """Return the error of a database that answers, and has no room for what is to be stored."""
        error = cls.__new__(cls)
        GuanacoError.__init__(
            error,
            "The platform's disk is full, so nothing can be stored.",
            hint="Try again once an operator has made room. What was stored is still there.",
        )
        return error


class ArtifactLost(Unavailable):
    """The store has lost what the submission is served from."""

    code = "artifact_lost"

    def __init__(self) -> None:
        super().__init__(
            "The submission's artifact is no longer in the store, so it cannot answer now.",
            hint="The platform makes it again from the Hub: try again in some minutes.",
        )


class PromptFailed(Unavailable):
    """``why`` is the end of a sentence."""

    code = "prompt_failed"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} cannot be rendered: {why}.",
            hint="The submission's developer can submit it with another prompt.",
        )
        self.what = what
        self.why = why


class ModelTimedOut(Unavailable):
    code = "model_timed_out"

    def __init__(self, submission_id: str, after_s: float) -> None:
        super().__init__(
            f"{submission_id} did not answer within {after_s:g} s.",
            hint="Try again, or regenerate the reply.",
        )


class ServerUnreachable(Unavailable):
    code = "server_unreachable"

    def __init__(self, url: str) -> None:
        super().__init__(
            f"No Guanaco server answers at {url}.",
            hint="`guanaco up` starts one; `guanaco login --url` names another.",
        )


class DataDirInUse(Unavailable):
    code = "data_dir_in_use"

    def __init__(self, data_dir: str) -> None:
        super().__init__(
            f"Another Guanaco runs on {data_dir}.",
            hint="Stop it first, or choose another --data-dir.",
        )


class SchemaNotReady(Unavailable):
    code = "schema_not_ready"

    def __init__(self, state: str, wanted: str) -> None:
        super().__init__(
            f"The database {state}, and this Guanaco needs revision {wanted}.",
            hint="`guanaco migrate` brings it there.",
        )


class WorkerGivenUp(Unavailable):
    code = "worker_given_up"

    def __init__(self, executor_id: str) -> None:
        super().__init__(
            f"Worker {executor_id} was silent for too long, and others have taken over its work.",
            hint="It may start again.",
        )


class InvalidSettings(GuanacoError):
    code = "invalid_settings"


class BackupFailed(GuanacoError):
    """A backup could not be made, tried out or restored; nothing looks whole that is not."""

    code = "backup_failed"


class BackupDamaged(GuanacoError):
    """There is no such backup, or it is not whole, was changed, or a newer version has written it."""

    code = "backup_damaged"


class ExportUnsupported(GuanacoError):
    code = "export_unsupported"

    def __init__(self, form: str, remedy: str) -> None:
        super().__init__(
            f"This server cannot write {form} files.",
            hint=f"Take jsonl or csv; an operator adds it with `{remedy}`.",
        )


class LibraryMissing(GuanacoError):
    code = "library_missing"

    def __init__(self, what: str, packages: str) -> None:
        super().__init__(f"{what} needs {packages}.", hint=f"`pip install {packages.split()[0]}`")


class InternalFault(GuanacoError):
    code = "internal_fault"

    def __init__(self, incident: str) -> None:
        super().__init__(
            f"Something went wrong on the platform (incident {incident}).",
            hint="Tell the operator the incident number.",
        )
