"""Tokens a second on the CPU, ours and the peer's in turn within one run.

Both sides run on the same threads, step by step in alternation, so that what else the machine does
meets both. The peer runs in bf16 and in fp32; the faster one of each case counts. Prefill is timed
exact (every row through every layer) and with bounded decoder replay. Knows nothing of which
numbers are good.
"""

from __future__ import annotations

import json as json_text
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.bench.toy_v4 import build_toy
from deepinfer.model.load import LoadOptions, load_network
from deepinfer.model.network import Network
from deepinfer.model.state import State
from deepinfer.runner.assemble import RowSlice, assemble

Record = dict[str, Any]
Step = Callable[[], object]

BATCHES = (1, 4, 16)
CONTEXT = 256  # tokens before the timed decode steps: the window and the selection are full
PROMPTS = (512, 2048)
KEEP = 140  # prompt rows that run the decoder layers in bounded replay
_DECODE_STEPS = 12
_PREFILLS = 3
_SEED = 5


class Ours:
    """The network with room for some requests that grow in step.

    Args:
        network: loaded weights.
        prompts: token ids of each request.
        limit: most tokens of a request.
        keep: prompt rows that run the decoder layers; None: all.
    """

    def __init__(
        self,
        network: Network,
        prompts: Sequence[list[int]],
        limit: int,
        keep: int | None = None,
    ):
        pages = -(-limit // PAGE_TOKENS)
        count = len(prompts)
        self.network = network
        self.starts = [0 if keep is None else max(len(p) - keep, 0) for p in prompts]
        self.ids = [list(prompt) for prompt in prompts]
        self.pages = [range(1 + i * pages, 1 + (i + 1) * pages) for i in range(count)]
        self.state = State.allocate(
            network.arch,
            network.records,
            pages=1 + count * pages,
            slots=1 + count,
            device=network.device,
        )

    def _forward(self, slices: Sequence[RowSlice]) -> Tensor:
        engram = self.network.arch.engram
        ngram = 1 if engram is None else engram.max_ngram_size
        step = assemble(slices, ngram, self.network.device)
        return self.network.forward(step.history, step.batch, self.state, step.tail).hidden

    def prefill(self) -> None:
        """Every prompt whole, one after another, and the token that follows each."""
        for i, ids in enumerate(self.ids):
            start = self.starts[i]
            hidden = self._forward([RowSlice(ids, 0, len(ids), i + 1, self.pages[i], start)])
            ids.append(int(self.network.logits(hidden[-1:]).argmax()))

    def decode(self) -> None:
        """One more token a request, all in one step."""
        rows = [
            RowSlice(ids, len(ids) - 1, 1, i + 1, self.pages[i], self.starts[i])
            for i, ids in enumerate(self.ids)
        ]
        chosen = self.network.logits(self._forward(rows)).argmax(-1).tolist()
        for ids, token in zip(self.ids, chosen, strict=True):
            ids.append(token)


class Peer:
    """The toy with the same prompts; its cache grows with every step."""

    def __init__(self, model: Any, prompts: Sequence[list[int]]):
        self.model = model
        self.prompts = torch.tensor(prompts)
        self.cache: Any = None
        self.newest: Tensor | None = None

    @torch.inference_mode()
    def prefill(self) -> None:
        """All prompts in one call."""
        output = self.model(input_ids=self.prompts, use_cache=True, logits_to_keep=1)
        self.cache, self.newest = output.past_key_values, output.logits.argmax(-1)

    @torch.inference_mode()
    def decode(self) -> None:
        """One more token a request."""
        output = self.model(input_ids=self.newest, past_key_values=self.cache, use_cache=True)
        self.newest = output.logits.argmax(-1)


def _prompts(vocab: int, count: int, tokens: int) -> list[list[int]]:
    """Random ids; the first few, which are special tokens, are left out."""
    stream = torch.Generator().manual_seed(_SEED + count + tokens)
    return torch.randint(16, vocab - 16, (count, tokens), generator=stream).tolist()


def alternate(steps: Sequence[Step], rounds: int) -> list[float]:
    """Median seconds of each step, all of them run once untimed and then in turn."""
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, found in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def _record(name: str, tokens: int, seconds: list[float], dtypes: Sequence[str]) -> Record:
    ours, *peers = (tokens / each for each in seconds)
    best = max(range(len(peers)), key=lambda i: peers[i])
    return {
        "name": name,
        "unit": "tokens/s",
        "ours": round(ours, 2),
        "peer": round(peers[best], 2),
        "peer_dtype": dtypes[best],
        "ratio": round(ours / peers[best], 3),
    }


def environment() -> Record:
    """What the numbers depend on besides the code."""
    return {
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def run(directory: Path, *, json: bool = False) -> list[Record]:
    """Measure decode and prefill of a small checkpoint beside the peer.

    Args:
        directory: the checkpoint, e.g. of the embedded model.
        json: print one JSON line a record instead of a table.

    Returns:
        One record a case: rates of both sides, their ratio, hardware and versions.

    Raises:
        ConfigError: the peer's library is missing.
    """
    network = load_network(directory, torch.device("cpu"), "cpu", LoadOptions())
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32}
    peers = [build_toy(network.arch, dtype, _SEED) for dtype in dtypes.values()]
    around, records = environment(), list[Record]()

    def report(name: str, tokens: int, seconds: list[float]) -> None:
        record = _record(name, tokens, seconds, list(dtypes)) | around
        records.append(record)
        if json:
            print(json_text.dumps(record), flush=True)
        else:
            print(
                f"{name:28s} ours {record['ours']:9.1f}  peer {record['peer']:9.1f} "
                f"({record['peer_dtype']})  ratio {record['ratio']:.2f}",
                flush=True,
            )

    for batch in BATCHES:
        prompts = _prompts(network.arch.vocab_size, batch, CONTEXT)
        ours = Ours(network, prompts, CONTEXT + _DECODE_STEPS + 2)
        sides = [ours, *(Peer(model, prompts) for model in peers)]
        for side in sides:
            side.prefill()
        report(f"decode x{batch}", batch, alternate([s.decode for s in sides], _DECODE_STEPS))
    for tokens in PROMPTS:
        prompts = _prompts(network.arch.vocab_size, 1, tokens)
        steps: list[Step] = [
            lambda p=prompts, n=tokens, keep=keep: Ours(network, p, n + 1, keep).prefill()
            for keep in (None, KEEP)
        ]
        steps += [Peer(model, prompts).prefill for model in peers]
        exact, bounded, *others = alternate(steps, _PREFILLS)
        report(f"prefill {tokens}", tokens, [exact, *others])
        report(f"prefill {tokens}, last {KEEP} rows", tokens, [bounded, *others])
    return records
