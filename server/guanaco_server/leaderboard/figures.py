"""What is kept of a submission's metrics for later: their values, an hour's beside its score."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from guanaco.leaderboard import Estimate, SubmissionMetrics


class Figures(BaseModel):
    """As SubmissionMetrics, without intervals except that of the thumbs; None where there was not enough to say."""

    model_config = ConfigDict(frozen=True)

    thumbs_up_ratio: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None
    conversation_count: int | None = None
    conversation_length: float | None = None
    median_conversation_length: float | None = None
    ttft_ms_median: float | None = None
    ttft_ms_p95: float | None = None
    reply_ms_median: float | None = None
    reply_ms_p95: float | None = None
    retention: float | None = None
    repetition: float | None = None
    writing_speed: float | None = None
    regenerate_rate: float | None = None

    @staticmethod
    def of(metrics: SubmissionMetrics) -> Figures:
        found = {name: getattr(metrics, name) for name in Figures.model_fields}
        return Figures(
            **{
                name: figure.value if isinstance(figure, Estimate) else figure
                for name, figure in found.items()
            }
        )

    def to_json(self) -> str:
        return self.model_dump_json(exclude_none=True)
