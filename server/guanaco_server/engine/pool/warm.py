"""The process of a pool's pod that has imported vLLM, and becomes the model server that its order names.

    python -m guanaco_server.engine.pool.warm SOCKET

    imports ──▶ says "ready" ── the order: a line of JSON ──▶ becomes guanaco_server.engine.serve
                    └── SOCKET ends ──▶ ends

It becomes the server itself, without a fork (decision 0050): a pod serves one model, and nothing has shown that no library
of a GPU keeps state from before a fork. Like a fork server (engine/fork_server.py) it has one thread while it waits, because the
confinement, which begins with the order, holds for a thread. Where the imports leave more it ends with UNAVAILABLE, and
the server is started by its command.
"""

from __future__ import annotations

import os
import socket
import sys

from guanaco_server.engine import serve
from guanaco_server.engine.fork_server import UNAVAILABLE, import_everything, thread_count
from guanaco_server.formats.pool import PodOrder

READY = b"ready\n"


def main() -> None:
    keeper = socket.socket(fileno=int(sys.argv[1]))
    import_everything()
    if (threads := thread_count()) > 1:
        print(f"vLLM's imports left {threads} threads: its server is started by its command.")
        sys.exit(UNAVAILABLE)
    with keeper, keeper.makefile("rb") as orders:
        keeper.sendall(READY)
        line = orders.readline()
    if not line:
        return
    order = PodOrder.from_json(line)
    os.environ.update(order.environment)
    os.environ.update(order.secrets)
    sys.argv = [str(serve.__file__), *order.arguments]
    serve.main(list(order.arguments))


if __name__ == "__main__":
    main()
