"""What replay and the prefix cache save: seconds to the first token, each ratio within one run.

A prompt whose last rows alone run the decoder layers beside one of which all do; a prompt that came
before beside the same one cold, with each way back for the windows; and the cost of page keys.
Prompts are random ids. Knows nothing of which numbers are good, nor of where a network comes from.
"""

from __future__ import annotations

import json as json_text
import platform
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from deepinfer.arch import PAGE_TOKENS
from deepinfer.cache import extend_chain, first_key
from deepinfer.device import find_device
from deepinfer.engine.build import build_around
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.errors import ConfigError, DeepinferError
from deepinfer.model.network import Network
from deepinfer.request import RequestOutput, SamplingParams

Record = dict[str, Any]

LENGTHS = (2048, 8192, 16384)
_SHORT = 8192  # prompts up to here are timed three times, longer ones once
_SEED = 7
_HASHED = 131_072
_FIRST, _LAST = 100, 2000  # ids of prompts; the vocabulary of the embedded model has 2048
_CACHE_BYTES = 1 << 30  # most memory of an engine's pools; they take what one prompt needs
_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "off": {"decoder_replay": "off", "enable_prefix_caching": False},
    "snapshot": {},  # the defaults
    "exact": {"window_snapshot_bytes": 0},
    "bounded": {"window_snapshot_bytes": 0, "deterministic": False},
}


class Prompts:
    """Seconds to the first token of random prompts.

    Args:
        network: which computes; all engines share it.
        longest: tokens of the longest prompt.
    """

    def __init__(self, network: Network, longest: int):
        shape = EngineOptions(
            device=str(network.device),
            max_num_seqs=1,
            max_model_len=longest + PAGE_TOKENS,
            kv_cache_memory_bytes=_CACHE_BYTES,
        )
        self._services: dict[str, Service] = {
            name: build_around(network, replace(shape, **own), model=b"").service
            for name, own in _ENGINES.items()
        }
        self._ids = random.Random(_SEED)

    def fresh(self, tokens: int) -> list[int]:
        """A prompt that never came before."""
        return [self._ids.randrange(_FIRST, _LAST) for _ in range(tokens)]

    def first_token(self, engine: str, prompt: list[int]) -> tuple[float, int]:
        """Seconds from arrival to the first token, and the cached tokens, of one request alone."""
        service = self._services[engine]
        params = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
        service.add("alone", {"prompt_token_ids": prompt}, params)
        outputs: list[RequestOutput] = []
        while not service.idle:
            outputs += service.step()
        metrics = outputs[-1].metrics
        if outputs[-1].error is not None or metrics is None or metrics.first_token is None:
            raise DeepinferError(f"{len(prompt)} prompt tokens failed: {outputs[-1].error}")
        return metrics.first_token - metrics.arrival, outputs[-1].num_cached_tokens

    def reset(self) -> None:
        """Forget what came before."""
        for service in self._services.values():
            service.core.scheduler.reset_prefix_cache()


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


def run(
    network: Network, name: str, lengths: Sequence[int] = LENGTHS, *, json: bool = False
) -> list[Record]:
    """Measure all lengths and the hashing, and print them.

    Args:
        network: loaded weights, of the embedded model or of a slice.
        name: of the model, for the records.
        lengths: of prompts, each longer than a page.
        json: one line of JSON a record instead of a table.

    Returns:
        The records, with hardware and versions.

    Raises:
        ConfigError: a length is out of range.
    """
    if not lengths or min(lengths) <= PAGE_TOKENS:
        raise ConfigError(f"lengths {list(lengths)}: use numbers above {PAGE_TOKENS}")
    device = find_device(str(network.device))
    around = {
        "model": name,
        "device": device.name,
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    records: list[Record] = []

    def report(record: Record) -> None:
        records.append(record | around)
        print(json_text.dumps(records[-1]) if json else _line(record), flush=True)

    prompts = Prompts(network, max(lengths))
    report({"name": "hashing", "us_per_token": round(hashing_us(prompts.fresh(_HASHED)), 5)})
    prompts.first_token("snapshot", prompts.fresh(PAGE_TOKENS))  # threads and pages warm up
    for tokens in lengths:
        if device.has_graphs:  # steps are compiled, and captured when they come again
            measure(prompts, tokens, 2)
        for record in measure(prompts, tokens, 3 if tokens <= _SHORT else 1):
            report(record)
    return records


def _line(record: Record) -> str:
    if "ratio" not in record:
        return f"{record['name']:20s} {record['us_per_token']:.4f} us a token"
    return (
        f"{record['name']:20s} {record['before_seconds']:9.3f} s -> "
        f"{record['after_seconds']:9.3f} s  {record['ratio']:7.2f} x"
    )
