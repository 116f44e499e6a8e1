"""Tests what the drawings are made of: histograms, lines over time, and the small rules beside them."""

from __future__ import annotations

import itertools
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guanaco.errors import InvalidSettings, TooManyAttempts
from guanaco.submissions import Percentiles
from guanaco_server.leaderboard.ranking.history import PastScore
from guanaco_server.stress.verdict import MOST_BINS, histogram
from guanaco_server.web import words
from guanaco_server.web.access.throttle import Throttle, network_of
from guanaco_server.web.access.viewer import form_token, is_form_token, new_cookie
from guanaco_server.web.chat.bots import read_bots
from guanaco_server.web.views import charts

LATENCIES = st.lists(
    st.floats(min_value=0, max_value=1e6, allow_nan=False), min_size=1, max_size=200
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def points(*scores: float | None) -> list[PastScore]:
    return [
        PastScore(BEGIN + timedelta(days=day), score, None, None)
        for day, score in enumerate(scores)
    ]


@given(LATENCIES)
def test_a_histogram_holds_every_value_in_few_even_bins(values: list[float]) -> None:
    bins = histogram(values)
    assert sum(item.count for item in bins) == len(values)
    assert 2 <= len(bins) <= MOST_BINS
    assert bins[0].count == 0
    widths = {
        round((after.upper_ms - before.upper_ms) / (bins[1].upper_ms - bins[0].upper_ms), 3)
        for before, after in itertools.pairwise(bins)
    }
    assert widths == {1.0}
    assert bins[-1].upper_ms >= max(values) - 1e-6


def test_a_histogram_of_nothing_is_empty() -> None:
    assert histogram([None, None]) == []
    assert charts.histogram([], None) is None


@given(LATENCIES)
def test_a_histograms_drawing_stays_within_its_frame(values: list[float]) -> None:
    marked = Percentiles(p50=min(values), p95=max(values), p99=max(values), max=max(values))
    drawn = charts.histogram(histogram(values), marked)
    assert drawn is not None
    for bar in drawn.bars:
        assert drawn.left - 1 <= bar.x <= drawn.width
        assert 0 <= bar.y <= drawn.bottom
        assert math.isclose(bar.y + bar.height, drawn.bottom, abs_tol=0.2)
    assert all(drawn.left <= mark.at <= drawn.width for mark in drawn.marks)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=90))
def test_a_sparkline_stays_within_its_frame(scores: list[float]) -> None:
    drawn = charts.sparkline(points(*scores))
    assert drawn is not None
    for x, y in re.findall(r"([\d.]+) ([\d.]+)", drawn.line):
        assert 0 <= float(x) <= drawn.width
        assert 0 <= float(y) <= drawn.height


def test_a_line_needs_two_points() -> None:
    assert charts.sparkline(points(0.5, None)) is None
    assert charts.trend(points(0.5), lambda point: point.score, None, words.percent) is None


def test_a_trend_of_a_constant_nothing_is_a_flat_line() -> None:
    drawn = charts.trend(points(0.0, 0.0), lambda point: point.score, None, words.percent)
    assert drawn is not None
    assert drawn.end_y == drawn.bottom


def test_attempts_are_counted_by_name_and_forgotten_in_time() -> None:
    seconds = [0.0]
    throttle = Throttle(2, 60, lambda: seconds[0])
    for _ in range(2):
        throttle.require_room("a")
        throttle.note("a")
    with pytest.raises(TooManyAttempts):
        throttle.require_room("a")
    throttle.require_room("b")
    seconds[0] = 60
    throttle.require_room("a")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
    ],
)
def test_all_addresses_of_one_home_are_one_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_a_forms_token_fits_its_cookie_only() -> None:
    one, other = new_cookie(), new_cookie()
    assert is_form_token(form_token(one), one)
    assert not is_form_token(form_token(other), one)


def test_bots_come_from_a_file_or_the_reason_why_not(tmp_path: Path) -> None:
    path = tmp_path / "bots.toml"
    path.write_text('[nia]\nname = "Nia"\nfirst_message = "Ahoy!"\n')
    assert read_bots(path)["nia"].first_message == "Ahoy!"
    assert "marlowe" in read_bots(None)
    for content, says in (
        ("", "holds no bot"),
        ("[nia", "is not TOML"),
        ("[nia]\nnam = 'x'", "nia.name: Field required"),
        ("['No Slug']\nname = 'x'", "small letters"),
    ):
        path.write_text(content)
        with pytest.raises(InvalidSettings, match=says):
            read_bots(path)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        read_bots(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("value", "says"),
    [(None, "\u2013"), (0, "0"), (9_999, "9,999"), (12_345, "12.3\u202fk"), (8_030_261_248, "8\u202fB")],
)  # fmt: skip
def test_counts_are_short(value: int | None, says: str) -> None:
    assert words.count(value) == says


def test_times_are_told_from_now() -> None:
    said = [words.ago(BEGIN - timedelta(seconds=s), BEGIN) for s in (5, 125, 7_300, 90_000, 9e6)]
    assert said == ["just now", "2\u202fmin ago", "2\u202fh ago", "1\u202fd ago", "18 Sep 2025"]
    assert words.ago(None, BEGIN) == "never"
