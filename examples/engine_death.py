"""What twenty users see when the device dies under them: every one gets an answer.

Run it with `python examples/engine_death.py`. The failure is made by hand: step 12 raises.
"""

import asyncio
import logging
import sys
from typing import Any

from deepinfer import AsyncEngine, RequestOutput, SamplingParams
from deepinfer.config import cache_dir
from deepinfer.engine.build import build_service
from deepinfer.engine.options import options_from
from deepinfer.errors import RequestError
from deepinfer.nano.build import nano_directory

DIES_AT_STEP = 12


def break_device(runner: Any) -> None:
    """Make the runner raise in the middle of a later step."""
    honest = runner.sample

    def sample(number: int, *more: Any) -> None:
        if number == DIES_AT_STEP:
            raise RuntimeError("the device is gone")
        honest(number, *more)

    runner.sample = sample


async def ask(engine: AsyncEngine, user: int) -> RequestOutput:
    """One user's last word from the engine."""
    params = SamplingParams(max_tokens=3 + user % 9, temperature=0, ignore_eos=True)
    outputs = [output async for output in engine.stream(f"user-{user}", f"Hello {user}", params)]
    return outputs[-1]


async def main(engine: AsyncEngine) -> None:
    """Ask for twenty users at once, then for one who comes too late."""
    for user, output in enumerate(await asyncio.gather(*(ask(engine, u) for u in range(20)))):
        tokens = len(output.outputs[0].token_ids) if output.outputs else 0
        print(f"user-{user}: finished={output.finished} tokens={tokens} error={output.error}")
    try:
        await ask(engine, 20)
    except RequestError as error:
        print(f"user-20: refused with status {error.status}: {error}")
    print(engine.health())


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    options = options_from({"max_model_len": 256, "max_num_seqs": 8})
    service = build_service(nano_directory(cache_dir()), options).service
    break_device(service.core.runner)
    asyncio.run(main(AsyncEngine(service)))
