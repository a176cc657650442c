"""What replay and the prefix cache save: seconds to the first token, each ratio within one run.

A prompt whose last rows alone run the decoder layers beside one of which all do; a prompt that came
before beside the same one cold, with each way back for the windows; and the cost of page keys.
Prompts are random ids. Knows nothing of which numbers are good.
"""

from __future__ import annotations

import json as json_text
import platform
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from deepinfer.arch import PAGE_TOKENS
from deepinfer.cache import extend_chain, first_key
from deepinfer.engine.llm import LLM
from deepinfer.errors import ConfigError, DeepinferError
from deepinfer.request import SamplingParams

Record = dict[str, Any]

LENGTHS = (2048, 8192, 16384)
_SHORT = 8192  # prompts up to here are timed three times, longer ones once
_SEED = 7
_HASHED = 131_072
_FIRST, _LAST = 100, 2000  # ids of prompts; the vocabulary of the embedded model has 2048
_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "off": {"decoder_replay": "off", "enable_prefix_caching": False},
    "snapshot": {},  # the defaults
    "exact": {"window_snapshot_bytes": 0},
    "bounded": {"window_snapshot_bytes": 0, "deterministic": False},
}


class Prompts:
    """Seconds to the first token of random prompts.

    Args:
        directory: the checkpoint.
        longest: tokens of the longest prompt.
    """

    def __init__(self, directory: Path, longest: int):
        shape: dict[str, Any] = {
            "max_num_seqs": 1,
            "max_model_len": longest + PAGE_TOKENS,
            "device": "cpu",
        }
        self._engines = {name: LLM(directory, **shape, **own) for name, own in _ENGINES.items()}
        self._ids = random.Random(_SEED)

    def fresh(self, tokens: int) -> list[int]:
        """A prompt that never came before."""
        return [self._ids.randrange(_FIRST, _LAST) for _ in range(tokens)]

    def first_token(self, engine: str, prompt: list[int]) -> tuple[float, int]:
        """Seconds from arrival to the first token, and the cached tokens, of one request alone."""
        params = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
        output = self._engines[engine].generate(
            {"prompt_token_ids": prompt}, params, use_tqdm=False
        )[0]
        metrics = output.metrics
        if output.error is not None or metrics is None or metrics.first_token is None:
            raise DeepinferError(f"a prompt of {len(prompt)} tokens failed: {output.error}")
        return metrics.first_token - metrics.arrival, output.num_cached_tokens

    def reset(self) -> None:
        """Forget what came before."""
        for engine in self._engines.values():
            engine.reset_prefix_cache()


def hashing_us(ids: Sequence[int]) -> float:
    """Microseconds a token of the keys of a prompt's pages, the best of five."""
    first = first_key(b"model", b"layout", b"semantics", b"")
    best = float("inf")
    for _ in range(5):
        keys: list[bytes] = []
        start = time.perf_counter()
        extend_chain(keys, first, ids, PAGE_TOKENS, len(ids))
        best = min(best, time.perf_counter() - start)
    return best / len(ids) * 1e6


def measure(prompts: Prompts, tokens: int, rounds: int) -> list[Record]:
    """All cases of one prompt length, in turn, each `rounds` times on fresh prompts.

    Returns:
        records named "compact N" (all rows against the last ones in the decoder layers, both cold)
        and "hit N", "exact hit N", "bounded hit N" (cold against a prompt that came before, its
        windows from a snapshot, an exact or a bounded replay).
    """
    times: dict[str, list[float]] = {}
    cached: dict[str, int] = {}
    for _ in range(rounds):
        prompt = prompts.fresh(tokens)
        for engine in _ENGINES:
            times.setdefault(f"{engine} cold", []).append(prompts.first_token(engine, prompt)[0])
            if engine != "off":
                seconds, cached[engine] = prompts.first_token(engine, prompt)
                times.setdefault(f"{engine} hit", []).append(seconds)
        prompts.reset()
    found = {name: statistics.median(values) for name, values in times.items()}
    records = [_record(f"compact {tokens}", tokens, found["off cold"], found["snapshot cold"])]
    for engine, label in (("snapshot", "hit"), ("exact", "exact hit"), ("bounded", "bounded hit")):
        cold, hit = found[f"{engine} cold"], found[f"{engine} hit"]
        records.append(
            _record(f"{label} {tokens}", tokens, cold, hit) | {"cached_tokens": cached[engine]}
        )
    return records


def _record(name: str, tokens: int, before: float, after: float) -> Record:
    return {
        "name": name,
        "tokens": tokens,
        "before_seconds": round(before, 4),
        "after_seconds": round(after, 4),
        "ratio": round(before / after, 3),
    }


def run(directory: Path, lengths: Sequence[int] = LENGTHS, *, json: bool = False) -> list[Record]:
    """Measure all lengths and the hashing, and print them.

    Args:
        directory: the checkpoint, e.g. of the embedded model.
        lengths: of prompts, each longer than a page.
        json: one line of JSON a record instead of a table.

    Returns:
        The records, with hardware and versions.

    Raises:
        ConfigError: a length is out of range.
    """
    if not lengths or min(lengths) <= PAGE_TOKENS:
        raise ConfigError(f"lengths {list(lengths)}: use numbers above {PAGE_TOKENS}")
    around = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    records: list[Record] = []

    def report(record: Record) -> None:
        records.append(record | around)
        if json:
            print(json_text.dumps(records[-1]), flush=True)
        elif "ratio" in record:
            print(
                f"{record['name']:20s} {record['before_seconds']:9.3f} s -> "
                f"{record['after_seconds']:9.3f} s  {record['ratio']:7.2f} x",
                flush=True,
            )
        else:
            print(f"{record['name']:20s} {record['us_per_token']:.4f} us a token", flush=True)

    prompts = Prompts(directory, max(lengths))
    report({"name": "hashing", "us_per_token": round(hashing_us(prompts.fresh(_HASHED)), 5)})
    prompts.first_token("snapshot", prompts.fresh(PAGE_TOKENS))  # threads and pages warm up
    for tokens in lengths:
        for record in measure(prompts, tokens, 3 if tokens <= _SHORT else 1):
            report(record)
    return records
