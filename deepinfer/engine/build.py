"""Builds a service from a checkpoint directory: device, network, pools, scheduler, border.

Knows nothing of requests.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from deepinfer.arch import Arch
from deepinfer.cache import pages_for
from deepinfer.device import Device, find_device
from deepinfer.engine.border import Border
from deepinfer.engine.core import EngineCore, Recorder
from deepinfer.engine.options import EngineOptions, MemoryPlan, plan_memory
from deepinfer.engine.service import Service
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import ConfigError
from deepinfer.model.load import LoadOptions, load_network
from deepinfer.model.network import Network
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import POLICIES, Limits, Scheduler


@dataclass(frozen=True)
class Built:
    """A service, its memory plan, and how long each phase of the start took."""

    service: Service
    memory: MemoryPlan
    phases: tuple[str, ...]


def build_service(
    directory: Path,
    options: EngineOptions,
    *,
    tokenizer: Path | None = None,
    recorder: Recorder | None = None,
) -> Built:
    """Load a model and put an engine around it.

    Args:
        directory: the checkpoint directory.
        options: see `LLM`.
        tokenizer: directory of another `tokenizer.json`, or None.
        recorder: told of every plan and result.

    Raises:
        DeepinferError: the model cannot be loaded as asked for.
    """
    times = [time.monotonic()]
    device = find_device(options.device)
    network = load(directory, device, options)
    times.append(time.monotonic())
    _check_keep(network.arch, options.decoder_keep)
    memory = plan_memory(
        network.arch, network.records, options, device.memory_free(), device.memory_bytes
    )
    text = _tokenizer(tokenizer or directory, network.arch, required=tokenizer is not None)
    border = Border(network.arch, text, memory.limits.max_model_len, options.max_logprobs)
    core = build_core(network, memory.limits, options, recorder=recorder)
    seeds = random.Random(options.seed)
    service = Service(border, core, lambda: seeds.getrandbits(64))
    times.append(time.monotonic())
    phases = (f"weights {times[1] - times[0]:.2f} s", f"pools {times[2] - times[1]:.2f} s")
    return Built(service, memory, phases)


def load(directory: Path, device: Device, options: EngineOptions) -> Network:
    """Load the network that the options describe; see `load_network`."""
    return load_network(
        directory,
        device.torch,
        device.arch,
        LoadOptions(
            numerics=options.numerics,
            load_format=options.load_format,
            seed=options.seed,
            engram=options.engram,
            ops=options.ops,
        ),
    )


def build_core(
    network: Network, limits: Limits, options: EngineOptions, *, recorder: Recorder | None = None
) -> EngineCore:
    """Runner and scheduler around a loaded network.

    Args:
        network: loaded weights.
        limits: sizes of pools and tables.
        options: `policy` and `async_scheduling` are used.
        recorder: told of every plan and result.
    """
    rows = RowLimits(
        rows=limits.num_slots + 1,
        tokens=limits.max_model_len,
        pages=pages_for(limits.max_model_len, limits.page_tokens),
        drafts=limits.max_draft,
    )
    runner = TorchRunner(network, rows, pages=limits.num_pages + 1)
    scheduler = Scheduler(limits, POLICIES[options.policy], end_id=network.arch.eos_token_id)
    return EngineCore(
        scheduler,
        runner,
        time.monotonic,
        async_scheduling=options.async_scheduling,
        recorder=recorder,
    )


def _check_keep(arch: Arch, keep: int | None) -> None:
    least = arch.sliding_window + arch.max_draft + 1
    if keep is not None and keep < least:
        raise ConfigError(f"decoder_keep {keep}: this model needs at least {least}")


def _tokenizer(directory: Path, arch: Arch, *, required: bool) -> TextTokenizer | None:
    if not required and not (directory / "tokenizer.json").exists():
        return None
    return TextTokenizer(directory, arch)
