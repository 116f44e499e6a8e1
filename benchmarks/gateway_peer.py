"""A peer of the gateway benchmark: the usual FastAPI route that streams from the model server with httpx."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

app = FastAPI()
client = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None), trust_env=False)
upstream = f"http://127.0.0.1:{sys.argv[2]}"


@app.get("/health")
async def health() -> dict[str, str]:
    return {}


@app.post("/v1/chat/completions")
async def complete(request: Request) -> StreamingResponse:
    body = await request.body()

    async def lines() -> AsyncIterator[bytes]:
        async with client.stream("POST", f"{upstream}/v1/chat/completions", content=body) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    return StreamingResponse(lines(), media_type="text/event-stream")


uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", loop="uvloop", http="httptools")
