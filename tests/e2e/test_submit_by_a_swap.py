"""The ten-second journey: a new submission of a known shape takes over a running model server. With real vLLM; what counts is the path."""

from __future__ import annotations

import pytest

from guanaco import Client
from guanaco.accounts import Role
from guanaco.bots import BOTS
from guanaco.submissions import GenerationParams, Status
from tests.e2e.conftest import StartPlatform
from tests.e2e.test_served_by_vllm import REAL_ENGINE, log_of
from tests.fixtures.hub import ControlledHub
from tests.fixtures.lora_repos import make_lora_repo
from tests.fixtures.named_models import make_named_repo
from tests.fixtures.up import eventually

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),  # the first one waits for the imports
    pytest.mark.usefixtures("engine_forks"),
]

SLEEPS_AT_ONCE: dict[str, object] = {
    "feedback_target": 1,
    "sleep_idle_s": 1,
    "scale_interval_s": 0.25,
    "hot_engines": 1,
    "hot_engine_requests": 0,
}
PARAMS = GenerationParams(temperature=0, stopping_words=[], max_output_tokens=8)
TAKEN_OVER = "has taken the model's weights; no process was started"


def deployed(client: Client, repo: str) -> str:
    made = client.wait(client.submit(repo, params=PARAMS).id)
    assert made.status is Status.DEPLOYED, made.failure
    return made.id


def rated_reply(app: Client, submission_id: str) -> str:
    bot = next(iter(BOTS.values()))
    opened = app.open_conversation(f"user of {submission_id}", bot, consent=True)
    assert opened.submission_id == submission_id, "the only one that is open to new conversations"
    reply = app.send(opened.conversation_id, "Hello!")
    app.rate(opened.conversation_id, True, f"Of {submission_id}.")
    return reply.content


def test_a_new_submission_of_a_known_shape_starts_no_process(
    start_platform: StartPlatform, hub: ControlledHub
) -> None:
    says = [
        make_named_repo(hub.root / "acme" / f"named-{token}", token, then=token + 1)
        for token in (301, 305)
    ]
    up = start_platform(**{**REAL_ENGINE, **SLEEPS_AT_ONCE})
    developer, app = up.client(Role.DEVELOPER, "ada"), up.client(Role.BACKEND, "app")
    first = deployed(developer, "acme/named-301")
    assert says[0] in rated_reply(app, first)
    developer.deactivate(first)
    eventually(lambda: not up.replicas(first), "sleep of the first submission")
    server = up.model_server().pid

    second = deployed(developer, "acme/named-305")
    assert TAKEN_OVER in log_of(developer, second)
    assert up.model_server().pid == server
    reply = rated_reply(app, second)
    assert says[1] in reply
    assert says[0] not in reply
    (feedback,) = developer.feedback(second)
    assert feedback.text == f"Of {second}."
    developer.deactivate(second)
    submits_adapters_of_one_base(developer, up.client(), hub)


def submits_adapters_of_one_base(developer: Client, chooser: Client, hub: ControlledHub) -> None:
    """The base takes over the server, as it has the shape of what that held; its adapters are added, unmerged by default."""
    for seed, name in enumerate(("one", "two"), 1):
        make_lora_repo(hub.root / "acme" / name, hub.root / "acme" / "tiny", seed=seed)
    made = [deployed(developer, f"acme/{name}") for name in ("tiny", "one", "two")]
    for number, submission_id in enumerate(made):
        log = log_of(developer, submission_id)
        assert ("The adapter is not merged" in log) is (number > 0)
        assert ("The adapter was added to its base's model server" in log) is (number > 0)
        assert (TAKEN_OVER in log) is (number == 0)
        assert "Model server started" not in log
        bot = next(iter(BOTS.values()))
        opened = chooser.open_conversation("user-17", bot, consent=True, model=submission_id)
        assert chooser.send(opened.conversation_id, "Hello!").content
