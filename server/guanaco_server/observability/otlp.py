"""Traces over OpenTelemetry's SDK to an OTLP receiver over HTTP. The SDK is imported with this module, and only with it.

Spans wait in a queue of QUEUE_SPANS and are sent by a thread of its own: a receiver that is slow or away costs spans,
never a turn any time. A request takes the decision of the app's ``traceparent`` whether it is recorded; one without is
recorded by chance, with ``ratio``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Self, Unpack
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from guanaco.errors import GuanacoError
from guanaco_server.observability.scope import RequestIds
from guanaco_server.observability.tracing import NO_SPAN, NoSpan, RequestSpan, SpanFacts, TraceSpan
from guanaco_server.runtime import threads

PATH = "/v1/traces"
QUEUE_SPANS = 4_096  # some 500 requests: 8 MB
SEND_EVERY_MS = 2_000
EXPORT_TIMEOUT_S = 5.0
CLOSE_S = 2.0
SAY_EVERY_S = 60.0
logger = logging.getLogger(__name__)

NAMES = {  # https://opentelemetry.io/docs/specs/semconv/
    "submission_id": "guanaco.submission",
    "endpoint": "server.address",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}


class OtlpTracing:
    def __init__(
        self, endpoint: str, ratio: float, *, authorization: str | None, version: str, role: str
    ) -> None:
        """``endpoint`` is the receiver's base URL, or the whole URL for traces."""
        url = endpoint.rstrip("/")
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would log each batch
        self._exporter = _Exporter(
            endpoint=url if url.endswith(PATH) else url + PATH,
            headers={"Authorization": authorization} if authorization else None,
            timeout=EXPORT_TIMEOUT_S,
        )
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=QUEUE_SPANS, schedule_delay_millis=SEND_EVERY_MS
        )
        self._trace_ids = _TraceIds()
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource(
                {"service.name": "guanaco", "service.version": version, "guanaco.role": role}
            ),
            id_generator=self._trace_ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("guanaco", version)

    def begin(self, ids: RequestIds, method: str) -> RequestSpan | None:
        parent = None
        if ids.traceparent:
            _, trace_id, span_id, flags = ids.traceparent.split("-")[:4]
            remote = SpanContext(
                int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16))
            )
            parent = set_span_in_context(NonRecordingSpan(remote))
        self._trace_ids.next = int(ids.trace_id, 16)
        begun = self._tracer.start_span(method, parent, SpanKind.SERVER)
        if not begun.is_recording():
            return _Unrecorded(_traceparent(begun))
        begun.set_attribute("http.request.method", method)
        return _ExportRequest(self._tracer, begun)

    async def close(self) -> None:
        """Send what is left within CLOSE_S; a receiver that is away does not hold up the end."""
        sent = threading.Thread(target=self._processor.force_flush, daemon=True)
        sent.start()
        await threads.METRICS.run(sent.join, CLOSE_S)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends a wait for the next try
        threading.Thread(target=self._processor.shutdown, daemon=True).start()


class _Exporter(OTLPSpanExporter):
    """Says now and then that the receiver does not take what it is sent."""

    _reported_at = float("-inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        now = time.monotonic()
        if result is not SpanExportResult.SUCCESS and now - self._reported_at >= SAY_EVERY_S:
            self._reported_at = now
            logger.warning("traces are lost: the OTLP receiver does not take them")
        return result


class _TraceIds(RandomIdGenerator):
    """A request that begins a trace has the trace id that its answer names."""

    next = 0

    def generate_trace_id(self) -> int:
        return self.next


class _ExportRequest:
    def __init__(self, tracer: Tracer, begun: Span) -> None:
        self._tracer = tracer
        self._span = begun
        self._context = set_span_in_context(begun)
        self._has_ended = False

    def child(self, name: str, *, is_call: bool) -> TraceSpan:
        if self._has_ended:
            return NO_SPAN
        kind = SpanKind.CLIENT if is_call else SpanKind.INTERNAL
        return _Step(self._tracer.start_span(name, self._context, kind))

    def end(self, route: str, status: int) -> None:
        self._has_ended = True
        method = self._span.attributes["http.request.method"]  # type: ignore[attr-defined]
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Step:
    def __init__(self, begun: Span) -> None:
        self._span = begun

    @property
    def traceparent(self) -> str:
        return _traceparent(self._span)

    def note(self, **facts: Unpack[SpanFacts]) -> None:
        for name, value in facts.items():
            if name == "error":
                self._span.set_attribute("error.type", str(value))
                self._span.set_status(Status(StatusCode.ERROR))
            elif name == "has_begun":
                self._span.add_event("first token")
            elif name == "endpoint":  # its credentials, if it had any, are no address
                self._span.set_attribute(NAMES[name], urlsplit(str(value)).hostname or "")
            else:
                self._span.set_attribute(NAMES[name], value)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            code = error.code if isinstance(error, GuanacoError) else type(error).__name__
            self.note(error=code)
        elif error is not None:
            self._span.add_event("abandoned")
        self._span.end()


class _Unrecorded:
    """A request that is not recorded: other servers are told so, and record nothing either."""

    def __init__(self, traceparent: str) -> None:
        self._step = NoSpan(traceparent)

    def child(self, name: str, *, is_call: bool) -> TraceSpan:
        return self._step

    def end(self, route: str, status: int) -> None:
        """Do nothing."""


def _traceparent(span: Span) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
