"""A sweep's file: its variants and their names, what is refused; and which variants wait for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from guanaco.errors import InvalidInput
from guanaco.prompts import PRESETS
from guanaco.submissions import Status
from guanaco.sweeps import MAX_VARIANTS, SweepFile, SweepRequest, engines_of, load_sweep
from guanaco_server.submissions.pipeline.sweep_order import SharedChecks, SweepMember, held_back

GRID = """
repo: acme/tiny
params: {max_output_tokens: 16}
grid:
  temperature: [0.5, 1.0]
  formatter: [chatml, pygmalion]
variants:
  - {name: greedy, temperature: 0}
  - {params: {stopping_words: ["\\n", "END"]}, best_of: 4}
"""


def loaded(folder: Path, text: str) -> SweepRequest:
    file = folder / "sweep.yaml"
    file.write_text(text)
    return load_sweep(file)


def test_a_grid_is_every_combination_and_the_list_follows(tmp_path: Path) -> None:
    request = loaded(tmp_path, GRID)
    assert [one.name for one in request.variants] == [
        "tiny temperature=0.5 formatter=chatml",
        "tiny temperature=0.5 formatter=pygmalion",
        "tiny temperature=1 formatter=chatml",
        "tiny temperature=1 formatter=pygmalion",
        "greedy",
        'tiny best_of=4 stopping_words=["\\n", "END"]',
    ]
    assert {one.params.max_output_tokens for one in request.variants} == {16}
    assert request.variants[0].formatter == PRESETS["chatml"]
    assert request.variants[5].params.stopping_words == ["\n", "END"]
    assert engines_of(request) == 1
    assert request.digest == loaded(tmp_path, GRID).digest


def test_names_follow_a_template() -> None:
    file = SweepFile(
        repo="acme/tiny", names="{repo} at {temperature} ({number})", grid={"temperature": [0, 1.5]}
    )
    assert [one.name for one in file.expand().variants] == ["tiny at 0 (1)", "tiny at 1.5 (2)"]


def test_long_names_are_cut_and_stay_different() -> None:
    words = [["x" * 60, "y" * 60], ["x" * 60, "z" * 60]]
    names = [
        one.name
        for one in SweepFile(repo="acme/tiny", grid={"stopping_words": words}).expand().variants
    ]
    assert len(set(names)) == 2
    assert all(name is not None and len(name) <= 64 for name in names)


def test_a_prompt_file_is_found_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("memory_template: '{memory}!'\n")
    request = loaded(tmp_path, "repo: acme/tiny\ngrid: {formatter: [mine.yaml, chatml]}\n")
    assert request.variants[0].name == "tiny formatter=mine"
    assert request.variants[0].formatter != PRESETS["pygmalion"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("repo: acme/tiny", "no variants"),
        ("repo: acme/tiny\ngrid: {temperature: []}", "grid.temperature: it has no values"),
        (
            "repo: acme/tiny\ngrid: {temperature: [1, 9]}",
            "grid (temperature=9): params.temperature",
        ),
        ("repo: acme/tiny\nvariants: [{}, {heat: 1}]", "variants.1: a variant cannot have 'heat'"),
        ("repo: acme/tiny\nvariants: [{formatter: no.yaml}]", "variants.0: There is no prompt"),
        ("repo: acme/tiny\nvariants: [{reward: r_v1}]", "variants.0: A reward model picks"),
        ("repo: acme/tiny\nvariants: [{name: a}, {name: a}]", "'a' is there twice"),
        ("repo: acme/tiny\nnames: '{heat}'\nvariants: [{}]", "names: '{heat}' is no template"),
        ("repo: tiny\nvariants: [{}]", "repo: It should look like org/name"),
        (
            f"repo: acme/tiny\ngrid: {{top_k: {list(range(65))}}}",
            "at most 64 variants, and this file makes 65",
        ),
        ("- a", "sweep.yaml: It should map names to values."),
        ("", "sweep.yaml: It should map names to values, and is empty."),
        ("repo: a/b\nvariants: [{}]\nrepo: c/d", "sweep.yaml: line 3 repeats the key 'repo'."),
        ("{", "neither YAML nor JSON: line 1: "),
        ("repo: a/b\ngrids: {top_k: [1]}", "grids: There is no such field; perhaps you mean grid."),
        ("repo: a/b\ngrid: {top_q: [1]}", "'top_q'; perhaps you mean top_p."),
        (
            "repo: a/b\nparams: {max_out_tokens: 9}\nvariants: [{}]",
            "params.max_out_tokens: There is no such field; perhaps you mean max_output_tokens.",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        loaded(tmp_path, text)
    assert said in caught.value.detail
    assert "sweep.yaml" in caught.value.detail


def test_a_huge_grid_is_refused_without_making_it() -> None:
    grid = {name: list(range(1_000)) for name in ("temperature", "top_k", "top_p", "min_p")}
    with pytest.raises(
        InvalidInput, match=f"{MAX_VARIANTS} variants, and this file makes 1,000,000,000,000"
    ):
        SweepFile(repo="acme/tiny", grid=grid).expand()


def test_one_variant_leads_until_it_is_served() -> None:
    assert held_back(members("queued", "queued", "queued")) == {"v2", "v3"}
    assert held_back(members("stress_testing", "queued", "queued")) == {"v2", "v3"}
    assert held_back(members("deployed", "queued", "queued")) == set()
    assert held_back(members("torn_down", "queued", "queued")) == set()


def test_the_next_leads_when_the_first_has_failed() -> None:
    assert held_back(members("failed", "queued", "queued")) == {"v3"}
    assert held_back(members("cancelled", "failed", "queued")) == set()
    assert held_back(members("queued", "checking", "queued")) == {"v1", "v3"}


def test_each_engine_has_one_that_leads() -> None:
    first, *others = members("deployed", "queued", "queued", "queued")
    longer = [SweepMember(one.id, one.sweep, one.status, "longer") for one in others[1:]]
    assert held_back([first, others[0], *longer]) == {"v4"}


def test_sweeps_do_not_wait_for_each_other() -> None:
    other = SweepMember("w1", "s2", Status.QUEUED, "engine")
    assert held_back([*members("checking", "queued"), other]) == {"v2"}


async def test_an_error_is_not_shared() -> None:
    checks, asked = SharedChecks(), list[int]()

    async def find() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise OSError
        return "found"

    with pytest.raises(OSError):
        await checks.get("key", find)
    assert [await checks.get("key", find) for _ in range(3)] == ["found"] * 3
    assert len(asked) == 2


def members(*statuses: str) -> list[SweepMember]:
    return [
        SweepMember(f"v{place}", "s1", Status(status), "engine")
        for place, status in enumerate(statuses, 1)
    ]
