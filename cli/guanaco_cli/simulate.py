"""`guanaco simulate`: what a planned competition needs for a verdict, by each policy, before anybody rates."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from guanaco.errors import InvalidInput
from guanaco_cli import words
from guanaco_cli.console import console
from guanaco_cli.options import AsJson, read_request

if TYPE_CHECKING:
    from guanaco.competitions import AssignmentKind, CompetitionRequest, RankingRule
    from guanaco.open_enum import OpenEnum
    from guanaco.simulations import (
        AskedSimulation,
        PlannedRegenerations,
        SharedServers,
        SharedVerdict,
        SimulatedVerdict,
        Simulation,
        SimulationRequest,
    )
    from guanaco_server.simulation.outcomes import SeasonOutcome
    from guanaco_server.simulation.seasons import SeasonPlan

Kind = TypeVar("Kind", bound="OpenEnum")

app = typer.Typer()

PLOT_CHARS = 48
LEVELS = " ▁▂▃▄▅▆▇█"
PLAIN_LEVELS = " .:-=+*#@"

CompetitionFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The competition's rules, as for `competitions put`."),
]
Submissions = Annotated[int, typer.Option(help="Submissions that take part.")]
PerDay = Annotated[float, typer.Option("--ratings-per-day", help="Ratings of all users in a day.")]
PerUser = Annotated[
    int,
    typer.Option("--ratings-per-user", help="Submissions that each user rates, or their duels."),
]
Gpus = Annotated[
    float,
    typer.Option("--gpus-per-submission", help="Below 1 where several share a model server."),
]
Mean = Annotated[float, typer.Option(help="Mean of the true shares of thumbs up.")]
Spread = Annotated[float, typer.Option(help="Standard deviation of these shares.")]
Correlation = Annotated[
    float, typer.Option(help="By duels: correlation of what a user feels for two replies.")
]
Ties = Annotated[float, typer.Option(help="By duels: share of ties between equal submissions.")]
Answering = Annotated[
    float, typer.Option(help="Where the file has `ask`: share of those asked who rate.")
]
Certainty = Annotated[float, typer.Option(help="How sure the verdict has to be.")]
MostRatings = Annotated[
    int, typer.Option("--most-ratings", help="Number of ratings at which a season ends undecided.")
]
Seasons = Annotated[int, typer.Option(help="Seasons to simulate for each line.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same seasons.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        metavar="RULE",
        help="thumbs_up, bradley_terry or combined; may be repeated.",
        autocompletion=lambda: ["thumbs_up", "bradley_terry", "combined"],
    ),
]
Engines = Annotated[
    int | None,
    typer.Option(
        "--engines", help="Model servers that all share: compares who sleeps, by GPU hours."
    ),
]
SwapS = Annotated[
    float, typer.Option("--swap-s", help="With --engines: seconds to change a server's submission.")
]
RatingS = Annotated[
    float, typer.Option("--rating-s", help="With --engines: seconds of a server for each rating.")
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="POLICY",
        help="newest, uniform, adaptive or decide; may be repeated.",
        autocompletion=lambda: ["newest", "uniform", "adaptive", "decide"],
    ),
]


@app.command(epilog="Example: guanaco simulate autumn.yaml --submissions 40 --ratings-per-day 500")
def simulate(
    file: CompetitionFile,
    submissions: Submissions = 20,
    ratings_per_day: PerDay = 1_000,
    ratings_per_user: PerUser = 2,
    gpus_per_submission: Gpus = 1.0,
    mean: Mean = 0.6,
    spread: Spread = 0.107,
    correlation: Correlation = 0.5,
    ties: Ties = 0.2,
    answering: Answering = 0.5,
    certainty: Certainty = 0.95,
    most_ratings: MostRatings = 40_000,
    seasons: Seasons = 20,
    seed: Seed = 1,
    rule: Rules = None,
    policy: Policies = None,
    engines: Engines = None,
    swap_s: SwapS = 10.0,
    rating_s: RatingS = 10.0,
    as_json: AsJson = False,
) -> None:
    """Estimate what a planned competition needs for a verdict.

        Seasons are simulated here, with the platform's own policies and tests: no server is asked. Without --policy all policies are
        simulated, without --rule the file's own rule; rules by strengths need the platform's extra `server`. Where the file's duels settle who is best,
        `decide` is simulated by duels, and each rating is a duel. With --engines it also says how many
        GPU hours a verdict by thumbs needs where this number of model servers is shared, by each value of the setting `sleep_policy`. Where the file has `ask`, the verdict
    on all who could be asked is simulated too, under --policy or the file's own; where it has `duels.regenerations`, it says how many of them tell a pair apart.
    """
    from pydantic import ValidationError

    from guanaco.competitions import AssignmentKind, CompetitionRequest, RankingRule
    from guanaco.errors.validation import one_sentence
    from guanaco.simulations import Simulation, SimulationRequest

    competition = read_request(file, CompetitionRequest)
    try:
        request = SimulationRequest(
            submissions=submissions,
            ratings_per_day=ratings_per_day,
            ratings_per_user=ratings_per_user,
            gpus_per_submission=gpus_per_submission,
            mean=mean,
            spread=spread,
            correlation=correlation,
            ties=ties,
            answering=answering,
            certainty=certainty,
            most_ratings=most_ratings,
            seasons=seasons,
            seed=seed,
        )
    except ValidationError as error:
        raise InvalidInput(one_sentence(error)) from None
    if spread**2 >= mean * (1 - mean):
        raise InvalidInput(
            f"No shares with a mean of {mean:g} have a standard deviation of {spread:g}.",
            hint="Give a smaller --spread.",
        )
    rules = _chosen("--rule", RankingRule, rule) or [competition.ranking]
    policies = _chosen("--policy", AssignmentKind, policy) or list(AssignmentKind)
    servers = _servers(engines, swap_s, rating_s, submissions)
    within = competition.assignment.within
    verdicts = list(_verdicts(request, competition, rules, policies))
    shared = list(_shared(request, servers, within)) if servers else []
    asking = policies if policy else [competition.assignment.kind]
    found = Simulation(
        within=within,
        request=request,
        verdicts=verdicts,
        servers=servers,
        shared=shared,
        asked=list(_asked(request, competition, asking)),
        regenerations=_regenerations(request, competition),
    )
    if as_json:
        console.json(found)
    else:
        _show(found, competition)
        _show_shared(found)
        _show_asked(found, competition)
        _show_regenerations(found)


def _servers(
    engines: int | None, swap_s: float, rating_s: float, submissions: int
) -> SharedServers | None:
    from pydantic import ValidationError

    from guanaco.errors.validation import one_sentence
    from guanaco.simulations import SharedServers

    if engines is None:
        return None
    if engines >= submissions:
        raise InvalidInput(
            f"With {engines} model servers none of {submissions} submissions has to sleep.",
            hint="Give a smaller --engines, or more --submissions.",
        )
    try:
        return SharedServers(engines=engines, swap_s=swap_s, rating_s=rating_s)
    except ValidationError as error:
        raise InvalidInput(one_sentence(error)) from None


def _chosen(option: str, kind: type[Kind], named: Sequence[str] | None) -> list[Kind]:
    known = [one.value for one in kind]
    for name in named or ():
        if name not in known:
            raise InvalidInput(f"{option} {name}: there is {', '.join(known)}.")
    return [kind(name) for name in dict.fromkeys(named or ())]


def _verdicts(
    request: SimulationRequest,
    competition: CompetitionRequest,
    rules: Sequence[RankingRule],
    policies: Sequence[AssignmentKind],
) -> Iterator[SimulatedVerdict]:
    from concurrent.futures import ProcessPoolExecutor

    from guanaco_server.simulation.seasons import simulate

    plans = [_plan(request, competition, rule, policy) for rule in rules for policy in policies]
    if any(one.rule != "thumbs_up" and not one.is_by_duels for one in plans):
        _require_numpy("Strengths are fitted", "`--rule thumbs_up`")
    if competition.ask is not None:
        _require_numpy("A random share that is asked is simulated", "leave `ask` out of the file")
    with ProcessPoolExecutor(os.cpu_count()) as pool:

        def run(plan: SeasonPlan, seeds: Sequence[int]) -> Iterator[SeasonOutcome]:
            from guanaco_server.simulation.seasons import season

            return pool.map(season, [plan] * len(seeds), seeds)

        for done, plan in enumerate(plans, start=1):
            how = "duels" if plan.is_by_duels else plan.rule
            console.say(
                f"{done} of {len(plans)}: {request.seasons} seasons by {plan.assignment.kind}, {how} …"
            )
            yield simulate(plan, run)


def _plan(
    request: SimulationRequest,
    competition: CompetitionRequest,
    rule: RankingRule,
    policy: AssignmentKind,
) -> SeasonPlan:
    """Return how the platform would run the competition by this rule and policy."""
    from guanaco_server.simulation.seasons import SeasonPlan

    assignment = competition.assignment.model_copy(update={"kind": policy})
    planned = competition.model_copy(update={"assignment": assignment, "ranking": rule})
    is_by_duels = planned.is_settled_by_duels and rule != "thumbs_up"
    return SeasonPlan(request, assignment, rule, is_by_duels)


def _shared(
    request: SimulationRequest, servers: SharedServers, within: float
) -> Iterator[SharedVerdict]:
    from concurrent.futures import ProcessPoolExecutor

    from guanaco.simulations import SleepPolicy
    from guanaco_server.simulation.engines import SharedPlan, shared_season, simulate_shared

    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for policy in SleepPolicy:
            console.say(f"{request.seasons} seasons on {servers.engines} model servers: {policy} …")
            yield simulate_shared(
                SharedPlan(request, servers, within, policy),
                lambda plan, seeds: pool.map(shared_season, [plan] * len(seeds), seeds),
            )


def _asked(
    request: SimulationRequest, competition: CompetitionRequest, policies: Sequence[AssignmentKind]
) -> Iterator[AskedSimulation]:
    from concurrent.futures import ProcessPoolExecutor

    from guanaco_server.simulation.asking import AskingPlan, asking_season, simulate_asked

    if competition.ask is None:
        return
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for policy in policies:
            console.say(f"{request.seasons} seasons in which a share is asked, by {policy} …")
            assignment = competition.assignment.model_copy(update={"kind": policy})
            yield simulate_asked(
                AskingPlan(request, assignment, competition.ask),
                lambda plan, seeds: pool.map(asking_season, [plan] * len(seeds), seeds),
            )


def _regenerations(
    request: SimulationRequest, competition: CompetitionRequest
) -> PlannedRegenerations | None:
    from guanaco.simulations import PlannedRegenerations
    from guanaco_server.simulation.regenerations import regenerations_until

    if not competition.duels.regenerations:
        return None
    pairs = request.submissions * (request.submissions - 1) // 2
    needed = regenerations_until(competition.assignment.within, pairs, 1 - request.certainty)
    return PlannedRegenerations(
        share=competition.duels.regenerations, of_pair=needed, of_all_pairs=needed * pairs
    )


def _require_numpy(what: str, instead: str) -> None:
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        raise InvalidInput(
            f"{what} with numpy, which is not installed here.",
            hint=f"`pip install 'guanaco-platform[server]'`, or {instead}.",
        )


def _show(found: Simulation, competition: CompetitionRequest) -> None:
    own = (competition.assignment.kind, competition.ranking)
    figures = ("ratings>", "middle half>", "users>", "days>", "GPU hours>", "decided>", "wrong>")
    console.table(
        ("rule", "policy", *figures),
        [_row(one, is_own=(one.policy, one.rule) == own) for one in found.verdicts],
    )
    for line in plot(found):
        console.line(line)
    request = found.request
    console.say(
        f"Medians of {request.seasons} seasons with {request.submissions} submissions until the leader is known to be within "
        f"{found.within * 100:g} points of the best, with {request.certainty * 100:.4g} % certainty at every look; undecided seasons count with {request.most_ratings:,} ratings, and > is before a figure that they decide."
        + (
            " * is the file's own."
            if own in [(one.policy, one.rule) for one in found.verdicts]
            else ""
        )
    )


def _show_shared(found: Simulation) -> None:
    if found.servers is None:
        return
    figures = ("GPU hours>", "middle half>", "days>", "ratings>", "changes>", "decided>", "wrong>")
    console.table(("who sleeps", *figures), list(map(_shared_row, found.shared)))
    servers, request = found.servers, found.request
    console.say(
        f"{request.submissions} submissions on {servers.engines} model servers of {request.gpus_per_submission:g} GPUs that are never idle: a change takes {servers.swap_s:g} s, "
        f"a rating {servers.rating_s:g} s. By thumbs; `--policy` and `--rule` have no part in it."
    )


def _shared_row(one: SharedVerdict) -> tuple[Any, ...]:
    return (
        one.policy,
        _at_least(f"{one.gpu_hours:,.1f}", one.decided < 1 / 2),
        _middle_half(one, 1),
        _at_least(f"{one.days:,.1f}", one.decided < 1 / 2),
        _at_least(f"{one.ratings:,.0f}", one.decided < 1 / 2),
        f"{one.changes:,.0f}",
        words.percent(one.decided),
        words.percent(one.wrong),
    )


def _show_asked(found: Simulation, competition: CompetitionRequest) -> None:
    if competition.ask is None:
        return
    figures = ("answers>", "middle half>", "conversations>", "days>", "decided>", "wrong>")
    console.table(
        ("of all who could be asked", *figures),
        [
            (
                one.policy,
                _at_least(f"{one.answers:,.0f}", one.decided < 1 / 2),
                _middle_half(one, 0),
                _at_least(f"{one.conversations:,.0f}", one.decided < 1 / 2),
                _at_least(f"{one.days:,.1f}", one.decided < 1 / 2),
                words.percent(one.decided),
                words.percent(one.wrong),
            )
            for one in found.asked
        ],
    )
    console.say(
        f"{words.percent(competition.ask.share)} of the conversations are asked for a rating, and {words.percent(found.request.answering)} of these answer. "
        "It is a verdict of its own, on all who could be asked; signals of conversations that tell of the answer would save some."
    )


def _show_regenerations(found: Simulation) -> None:
    planned = found.regenerations
    if planned is None:
        return
    console.say(
        f"{words.percent(planned.share)} of the regenerations are compared, where apps allow it. About {planned.of_pair:,} of a pair, each of another user, tell to within "
        f"{found.within * 100:g} points which of the two is kept more often; {planned.of_all_pairs:,} for all pairs. They are counted apart from the verdict."
    )


def _row(one: SimulatedVerdict, *, is_own: bool) -> tuple[Any, ...]:
    return (
        one.rule,
        f"{one.policy}{' by duels' * one.is_by_duels}{' *' * is_own}",
        _at_least(f"{one.ratings:,.0f}", one.decided < 1 / 2),
        _middle_half(one, 0),
        _at_least(f"{one.users:,.0f}", one.decided < 1 / 2),
        _at_least(f"{one.days:,.1f}", one.decided < 1 / 2),
        _at_least(f"{one.gpu_hours:,.0f}", one.decided < 1 / 2),
        words.percent(one.decided),
        words.percent(one.wrong),
    )


def _middle_half(one: SimulatedVerdict | SharedVerdict | AskedSimulation, digits: int) -> str:
    low = _at_least(f"{one.quarter:,.{digits}f}", one.decided < 1 / 4)
    high = _at_least(f"{one.three_quarters:,.{digits}f}", one.decided < 3 / 4)
    return f"{low} to {high}"


def _at_least(figure: str, is_undecided: bool) -> str:
    """Mark a figure of seasons that ended without a verdict: it would have come later."""
    return f"> {figure}" if is_undecided else figure


def plot(found: Simulation) -> list[str]:
    """Draw for each line the share of seasons that are decided, from no rating to the most."""
    levels = LEVELS
    try:
        LEVELS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        levels = PLAIN_LEVELS
    most = found.request.most_ratings
    labels = [f"{one.policy}, {'duels' if one.is_by_duels else one.rule}" for one in found.verdicts]
    width = max(map(len, labels))
    lines = ["", "decided seasons, by ratings"]
    for label, one in zip(labels, found.verdicts, strict=True):
        bars = ""
        for place in range(1, PLOT_CHARS + 1):
            limit = most * place / PLOT_CHARS
            known = sum(after is not None and after <= limit for after in one.decided_after)
            bars += levels[round(known / len(one.decided_after) * (len(levels) - 1))]
        lines.append(f"{label:<{width}} |{bars}|")
    end = f"{most:,}"
    lines.append(f"{'':<{width}}  0{end:>{PLOT_CHARS - 1}}")
    return lines
