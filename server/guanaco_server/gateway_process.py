"""One of several gateway processes (gateways.py): the API role, until its standard input ends with the platform."""

from __future__ import annotations

import os
import signal
import sys
import threading

from guanaco.errors import GuanacoError
from guanaco_server.serve import run
from guanaco_server.settings import load_settings

STDIN = 0


def main() -> int:
    threading.Thread(target=_end_with_the_platform, daemon=True).start()
    try:
        return run(load_settings().settings, lambda _started: None)
    except GuanacoError as error:
        print(f"error: {error.detail}", file=sys.stderr)
        return 1


def _end_with_the_platform() -> None:
    while os.read(
        STDIN, 4_096
    ):  # not by sys.stdin, whose lock a thread that still reads would hold at the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
