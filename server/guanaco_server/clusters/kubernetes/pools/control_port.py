"""The control port of a pool's pod, as the platform uses it (engine/pool/keeper.py answers)."""

from __future__ import annotations

from http import HTTPStatus

import httpx

from guanaco_server.formats.pool import ORDER_PATH, STATE_PATH, PodOrder

CONNECT_S, ANSWER_S = 2.0, 10.0
ASK_S = 1.0


class OrderNotTaken(Exception):
    """The pod does not answer, or refuses the order."""


class PoolPort:
    async def give(self, endpoint: str, token: str, order: PodOrder) -> None:
        """Give the order, which may be repeated. OrderNotTaken if the pod has another one, is not there, or cannot take one now."""
        answer = await self._ask("POST", f"{endpoint}{ORDER_PATH}", token, order.to_json())
        if answer.status_code != HTTPStatus.OK:
            raise OrderNotTaken(f"It answered {answer.status_code}: {answer.text[:200]}")

    async def holds(self, endpoint: str, token: str, artifact: str) -> bool:
        """Tell whether the pod's node has the artifact; False where it does not say."""
        url = f"{endpoint}{STATE_PATH}?artifact={artifact}"
        try:
            answer = await self._ask("GET", url, token, within_s=ASK_S)
            return answer.status_code == HTTPStatus.OK and bool(answer.json().get("holds"))
        except (OrderNotTaken, ValueError, AttributeError):
            return False

    async def _ask(
        self, method: str, url: str, token: str, body: bytes = b"", within_s: float = ANSWER_S
    ) -> httpx.Response:
        timeout = httpx.Timeout(within_s, connect=min(CONNECT_S, within_s))
        headers = {"Authorization": f"Bearer {token}"}
        try:  # orders are rare: a connection of their own leaves nothing open; never through a proxy
            async with httpx.AsyncClient(trust_env=False) as client:
                return await client.request(
                    method, url, content=body, headers=headers, timeout=timeout
                )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OrderNotTaken(f"It does not answer: {type(error).__name__}.") from error
