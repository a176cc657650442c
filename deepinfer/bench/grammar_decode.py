"""What constraints cost a decoding step: one engine with all rows constrained, and with none.

The two take turns within one run. On a CPU, where nothing is ever waited for, the processor time of
all threads counts, which others on the machine hardly change; elsewhere the time on the clock. It
does not know where the model comes from.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from deepinfer.engine.llm import LLM
from deepinfer.errors import DeepinferError
from deepinfer.request import SamplingParams, StructuredOutputsParams

Record = dict[str, Any]

ROWS, ROUNDS = 32, 5
# A step is the difference of two lengths, so that what happens at the start is left out: prompts,
# and the step that a request loses while its constraint is found among those compiled.
_SHORT, _LONG = 8, 40
_PROMPT = 16  # tokens
_LENGTH = 128
# It cannot end within the steps that are timed.
_SCHEMA = {
    "type": "array",
    "minItems": 1_000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": False,
    },
}


def measure(directory: Path, device: str, rows: int = ROWS, rounds: int = ROUNDS) -> Record:
    """Seconds of a decoding step with constraints and without, and their ratio.

    Args:
        directory: a checkpoint.
        device: "cpu", "cuda" or "auto".
        rows: requests that decode together.
        rounds: turns of each.

    Returns:
        `free_ms` and `constrained_ms` a step, from the quickest turns, and `slow_down`, their
        ratio less one.

    Raises:
        DeepinferError: a request failed.
    """
    llm = LLM(directory, device=device, max_num_seqs=rows, max_model_len=_LENGTH)
    prompts = [[100 + (row * 37 + place * 11) % 1_800 for place in range(_PROMPT)]
               for row in range(rows)]  # fmt: skip
    form = StructuredOutputsParams(json=_SCHEMA)
    free = SamplingParams(seed=1, ignore_eos=True)
    bound = SamplingParams(seed=1, structured_outputs=form)

    clock = process_time if device == "cpu" else perf_counter

    def seconds(params: SamplingParams, tokens: int) -> float:
        began = clock()
        outputs = llm.generate(prompts, replace(params, max_tokens=tokens), use_tqdm=False)
        taken = clock() - began
        for output in outputs:
            if output.error is not None or len(output.outputs[0].token_ids) != tokens:
                raise DeepinferError(f"a request of this bench failed: {output}")
        return taken

    for params in (free, bound):  # warm, and the constraint compiled
        seconds(params, _SHORT)
    kinds = [(params, tokens) for tokens in (_SHORT, _LONG) for params in (free, bound)]
    turns = [[seconds(*kind) for kind in kinds] for _ in range(rounds)]
    # What others on the machine do can only add to a time.
    short_free, short_bound, long_free, long_bound = map(min, zip(*turns, strict=True))
    step_free = (long_free - short_free) / (_LONG - _SHORT)
    step_bound = (long_bound - short_bound) / (_LONG - _SHORT)
    return {
        "name": f"decode, {rows} rows constrained",
        "unit": "ms",
        "free_ms": round(1e3 * step_free, 3),
        "constrained_ms": round(1e3 * step_bound, 3),
        "slow_down": round(step_bound / step_free - 1, 4),
        "count": rounds,
    }
