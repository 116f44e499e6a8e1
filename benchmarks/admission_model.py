"""A model server that answers a fixed number of requests at once, for the benchmark of admission.

    python benchmarks/admission_model.py PORT PLACES MEAN_S

Further requests wait until one has ended, as in vLLM. How long a reply takes is drawn from an exponential distribution
around a quarter of a second less than the mean; it comes in four pieces. `/stats` says the most that were here at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

PIECES = 4
LEAST = 0.25  # of the mean, which every reply takes
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
STREAM = (
    HEAD % b"text/event-stream; charset=utf-8"
    + b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


class ModelServer:
    def __init__(self, places: int, mean_s: float) -> None:
        self._free = asyncio.Semaphore(places)
        self._mean_s = mean_s
        self._chance = random.Random(0)
        self._here = self._most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.decode("latin-1").lower().splitlines():
                    if line.startswith("content-length:"):
                        length = int(line.partition(":")[2])
                await reader.readexactly(length)
                if head.startswith(b"POST"):
                    await self._reply(writer)
                else:
                    self._tell(writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _tell(self, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"most": self._most}).encode()
        self._most = self._here
        writer.write(HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(body) + body)

    async def _reply(self, writer: asyncio.StreamWriter) -> None:
        self._here += 1
        self._most = max(self._most, self._here)
        try:
            async with self._free:
                takes_s = self._mean_s * (LEAST + (1 - LEAST) * self._chance.expovariate(1))
                writer.write(STREAM)
                for piece in range(PIECES):
                    await asyncio.sleep(takes_s / PIECES)
                    writer.write(_chunk(f" piece {piece}", None))
                    await writer.drain()
                writer.write(_chunk("", "stop") + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        finally:
            self._here -= 1


def _chunk(text: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 20, "completion_tokens": PIECES} if finish_reason else None
    body = {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage}
    return _framed(b"data: " + json.dumps(body).encode() + b"\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


async def main(port: int, places: int, mean_s: float) -> None:
    model = ModelServer(places, mean_s)
    server = await asyncio.start_server(model.serve, "127.0.0.1", port, backlog=1_024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
