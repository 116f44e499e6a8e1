"""Runs ``vllm bench serve`` with the prompts of a file, one in a line as JSON; with the engine's Python.

Its own way to read such a file needs pandas, which nothing else here does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from vllm.benchmarks import serve
from vllm.benchmarks.datasets.datasets import SampleRequest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--reply-tokens", type=int, required=True)
    serve.add_cli_args(parser)
    options = parser.parse_args()
    lines = options.prompts.read_text().splitlines()

    def samples(*_: Any) -> list[SampleRequest]:
        return [
            SampleRequest(
                prompt=json.loads(line),
                prompt_len=1,  # only reported
                expected_output_len=options.reply_tokens,
                request_id=str(number),
            )
            for number, line in enumerate(lines)
        ]

    serve.get_samples = samples
    asyncio.run(serve.main_async(options))


if __name__ == "__main__":
    main()
