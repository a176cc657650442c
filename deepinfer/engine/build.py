"""Builds a service from a checkpoint directory: device, network, pools, scheduler, border.

Knows nothing of requests.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from deepinfer.arch import Arch
from deepinfer.cache import pages_for
from deepinfer.device import Device, find_device
from deepinfer.engine.border import Border
from deepinfer.engine.core import EngineCore, Recorder
from deepinfer.engine.memory import MemoryPlan, plan_memory
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.engine.sharing import caching, decoder_rows, draft_tokens, fingerprint
from deepinfer.engine.speculative import calibrated
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.engine.warm import warm_up
from deepinfer.engine.watchdog import Watchdog
from deepinfer.engine.workspace import step_bytes
from deepinfer.model.load import LoadOptions, load_network, resident_bytes
from deepinfer.model.network import Network
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import POLICIES, Limits, Scheduler


@dataclass(frozen=True)
class Built:
    """A service, its memory plan, and what else the start has to say: how long each phase took,
    and whether decoding steps are captured."""

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
    started = time.monotonic()
    drafts = calibrated(directory, options.speculative_config)
    options = replace(options, speculative_config=drafts)
    device = find_device(options.device)
    packing: list[float] = []
    network = load(directory, device, options, packed=packing.append)
    device.synchronize()
    seconds = time.monotonic() - started
    text = _tokenizer(tokenizer or directory, network.arch, required=tokenizer is not None)
    built = build_around(
        network,
        options,
        model=fingerprint(directory, options),
        text=text,
        recorder=recorder,
        measured=True,
    )
    weights = f"weights {seconds:.2f} s (of which packing {sum(packing):.2f} s)"
    return replace(built, phases=(f"{weights}, {built.phases[0]}", *built.phases[1:]))


def build_around(
    network: Network,
    options: EngineOptions,
    *,
    model: bytes,
    text: TextTokenizer | None = None,
    recorder: Recorder | None = None,
    measured: bool = False,
) -> Built:
    """Put an engine around a loaded network.

    Args:
        network: loaded weights; the engine runs on their device.
        options: see `LLM`; those of loading are not looked at.
        model: identifies the weights, see `with_sharing`.
        text: tokenizer, None for ids only.
        recorder: told of every plan and result.
        measured: on a GPU, run a step of the largest size to see the memory that it needs.

    Raises:
        ConfigError: the limits do not fit the memory or each other.
    """
    started = time.monotonic()
    device = find_device(str(network.device))
    memory = plan_memory(
        network.arch,
        network.records,
        options,
        device.memory_free(),
        device.memory_bytes,
        weight_bytes=resident_bytes(network.weights),
        step=partial(step_bytes, network.arch, network.records, network.ops),
    )
    border = Border(network.arch, text, memory.limits.max_model_len, options.max_logprobs)
    limits = with_sharing(memory.limits, network, options, model)
    core = build_core(network, limits, options, recorder=recorder, spare_bytes=memory.step_bytes)
    seeds = random.Random(options.seed)
    service = Service(border, core, lambda: seeds.getrandbits(64))
    pools = time.monotonic() - started
    warmth = warm_up(core, device, options, measured=measured)
    memory = replace(
        memory,
        workspace_bytes=warmth.workspace,
        step_tokens=warmth.step_tokens,
        graph_bytes=warmth.graph_bytes,
    )
    obstacles = graph_obstacles(network, device, options)
    sizes = ", ".join(str(size) for size in options.graph_sizes())
    graphs = f"decoding without graphs: {'; '.join(obstacles)}"
    if not obstacles:
        graphs = (
            f"decoding steps of {sizes} rows are captured, at the latest when they come twice, and "
            f"so are steps with up to {options.prompt_sizes()[-1]} prompt tokens"
        )
    phases = (f"pools {pools:.2f} s, {warmth.lines}", graphs)
    return Built(service, memory, phases)


def load(
    directory: Path,
    device: Device,
    options: EngineOptions,
    *,
    packed: Callable[[float], None] | None = None,
) -> Network:
    """Load the network that the options describe; see `load_network` and `LoadOptions.packed`."""
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
            packed=packed,
        ),
    )


def graph_obstacles(network: Network, device: Device, options: EngineOptions) -> list[str]:
    """Why decoding steps are not captured, one sentence each; [] if they are."""
    if not device.has_graphs:
        return [f"{device.name} has no graphs"]
    return ["asked for"] if options.enforce_eager else network.graph_obstacles()


def with_sharing(limits: Limits, network: Network, options: EngineOptions, model: bytes) -> Limits:
    """Limits with what the options say of the prefix cache, of replays and of speculation.

    Args:
        limits: sizes.
        network: its architecture and record formats count.
        options: see `sharing.caching`.
        model: identifies the weights.
    """
    return replace(
        limits,
        max_draft=draft_tokens(network.arch, options),
        drafting=options.speculative().drafting,
        decoder_keep=decoder_rows(network.arch, options),
        caching=caching(network.arch, network.records, options, model),
    )


def build_core(
    network: Network,
    limits: Limits,
    options: EngineOptions,
    *,
    recorder: Recorder | None = None,
    spare_bytes: int = 0,
) -> EngineCore:
    """Runner and scheduler around a loaded network.

    Args:
        network: loaded weights.
        limits: sizes of pools and tables; the sizes of graphs come from `options`.
        options: `policy`, `async_scheduling`, `step_timeout_s` and what concerns graphs are used.
        recorder: told of every plan and result.
        spare_bytes: of memory that captured graphs leave free, so that any step runs.
    """
    device = find_device(str(network.device))
    captured = not graph_obstacles(network, device, options)
    limits = replace(limits, graph_sizes=options.graph_sizes() if captured else ())
    rows = RowLimits(
        rows=limits.num_slots + 1,
        tokens=limits.max_model_len,
        pages=pages_for(limits.max_model_len, limits.page_tokens),
        drafts=limits.max_draft,
    )
    runner = TorchRunner(
        network,
        rows,
        pages=limits.num_pages + 1,
        graphs=device.graphs() if captured else None,
        graph_room=lambda: (device.memory_free() or 0) >= spare_bytes,
        prompt_sizes=options.prompt_sizes() if captured else (),
        snapshots=0 if limits.caching is None else limits.caching.snapshots,
        compact=options.decoder_replay != "mask",
        proposer=DraftStages(network, limits.max_draft) if limits.max_draft else None,
        verification=options.speculative().verification,
    )
    scheduler = Scheduler(limits, POLICIES[options.policy], end_id=network.arch.eos_token_id)
    limit = options.step_timeout_s
    return EngineCore(
        scheduler,
        runner,
        time.monotonic,
        async_scheduling=options.async_scheduling,
        recorder=recorder,
        watchdog=None if limit is None else Watchdog(limit),
    )


def _tokenizer(directory: Path, arch: Arch, *, required: bool) -> TextTokenizer | None:
    if not required and not (directory / "tokenizer.json").exists():
        return None
    return TextTokenizer(directory, arch)
