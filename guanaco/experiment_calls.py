"""The calls about A/B experiments, for admins. As calls.py, which has most others."""

from __future__ import annotations

from guanaco.calls import _get, _id, _post
from guanaco.contract import reader
from guanaco.experiments import Experiment, ExperimentRequest, ExperimentResults
from guanaco.wire import Call

_parse_experiments = reader(list[Experiment]).from_json


def experiments() -> Call[list[Experiment]]:
    """Every experiment, in the order in which they were made. Admin."""
    return _get("/experiments", parse=_parse_experiments)


def experiment(name: str) -> Call[Experiment]:
    """One experiment with its variants. Admin."""
    return _get(f"/experiments/{_id(name)}", parse=reader(Experiment).from_json)


def create_experiment(request: ExperimentRequest) -> Call[Experiment]:
    """A draft, which takes nobody yet. Admin."""
    return _post("/experiments", request, parse=reader(Experiment).from_json)


def start_experiment(name: str) -> Call[Experiment]:
    """From now on new conversations take part. Admin."""
    return _post(f"/experiments/{_id(name)}/start", parse=reader(Experiment).from_json)


def stop_experiment(name: str) -> Call[Experiment]:
    """No new conversation takes part; the open ones keep their variant. Admin."""
    return _post(f"/experiments/{_id(name)}/stop", parse=reader(Experiment).from_json)


def experiment_results(name: str) -> Call[ExperimentResults]:
    """What came of each variant, with 95 % intervals. Admin."""
    return _get(f"/experiments/{_id(name)}/results", parse=reader(ExperimentResults).from_json)
