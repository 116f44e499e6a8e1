from __future__ import annotations

import pytest

from guanaco.submissions import GenerationParams
from guanaco_server.deployments.model_servers.memory import MemoryModelServer, Script
from guanaco_server.deployments.model_servers.model_server import (
    Chunk,
    Generation,
    ModelServerFault,
)

ASKED = Generation("m_v1", "Hi", GenerationParams())


async def reply(server: MemoryModelServer) -> list[Chunk]:
    return [chunk async for chunk in server.generate("memory://m", ASKED)]


async def test_scripts_are_given_in_order_and_the_last_for_ever() -> None:
    server = MemoryModelServer(Script(["one"]), Script(["two", "!"]))
    assert [chunks[0].text for chunks in [await reply(server) for _ in range(3)]] == [
        "one",
        "two",
        "two",
    ]
    assert (await reply(server))[-1] == Chunk((), "stop", 7, 2)
    assert server.generations == [ASKED] * 4


async def test_a_fault_comes_after_the_pieces() -> None:
    chunks = MemoryModelServer(Script(["Hel"], fault="broke off")).generate("memory://m", ASKED)
    assert (await anext(chunks)).text == "Hel"
    with pytest.raises(ModelServerFault, match="broke off"):
        await anext(chunks)


async def test_closing_the_iterator_is_noticed() -> None:
    server = MemoryModelServer()
    chunks = server.generate("memory://m", ASKED)
    await anext(chunks)
    await chunks.aclose()
    assert server.cancelled == 1
