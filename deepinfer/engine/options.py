"""Options of the engine: defaults and checks.

Knows nothing of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from deepinfer.config import engine_defaults
from deepinfer.engine.speculative import Speculative, speculative
from deepinfer.errors import ConfigError
from deepinfer.model.engram_table import Placement
from deepinfer.model.load import LoadFormat
from deepinfer.scheduler import POLICIES

# Rows of captured decoding steps: close together where a row more is a large part of the step.
_GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
# Prompt tokens of captured steps: a step with so few takes no longer than its launches would.
_PROMPT_SIZES = (32, 64, 128, 192, 256, 320, 384, 448, 512)

DecoderReplay = Literal["off", "mask", "compact", "exact"]
_REPLAYS = ("off", "mask", "compact", "exact")

# vLLM's names for what this engine does not do (yet), and what to do instead.
_REFUSED: Mapping[str, str] = {
    "tensor_parallel_size": "one rank a process; attention is never sharded",
    "pipeline_parallel_size": "there is no pipeline parallelism",
    "data_parallel_size": "several ranks are not implemented yet",
    "enable_expert_parallel": "several ranks are not implemented yet",
    "structured_outputs_config": "there is one back end; options are in StructuredOutputsParams",
    "quantization": "the checkpoint's own formats are used",
    "dtype": "the checkpoint's own formats are used; see numerics",
    "trust_remote_code": "no code is ever taken from a checkpoint",
    "lora_path": "there are no adapters",
    "enable_lora": "there are no adapters",
    "cpu_offload_gb": "see engram='host' or 'disk'",
}


@dataclass(frozen=True)
class EngineOptions:
    """What an engine may use and how it behaves; see `LLM` for each."""

    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    seed: int = 0
    load_format: LoadFormat = "auto"
    numerics: str = "checkpoint"
    engram: Placement = "device"
    ops: Mapping[str, str] = field(default_factory=dict[str, str])
    async_scheduling: bool = True
    deterministic: bool = True
    policy: Literal["latency", "throughput"] = "throughput"
    decoder_replay: DecoderReplay = "compact"
    decoder_keep: int | None = None
    enable_prefix_caching: bool = True
    window_snapshot_bytes: int = 256 << 20
    speculative_config: Mapping[str, object] | None = None
    max_logprobs: int = 20
    enforce_eager: bool = False
    cudagraph_capture_sizes: Sequence[int] | None = None
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} {value!r}: use an integer >= 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"gpu_memory_utilization {self.gpu_memory_utilization}: use (0, 1]")
        if self.policy not in POLICIES:
            raise ConfigError(f"policy {self.policy!r}: use one of {sorted(POLICIES)}")
        sizes = self.cudagraph_capture_sizes
        if sizes is not None and not (
            all(isinstance(size, int) and size >= 1 for size in sizes)
            and list(sizes) == sorted(set(sizes))
        ):
            raise ConfigError(
                f"cudagraph_capture_sizes {sizes!r}: use ascending integers >= 1, rows of a step"
            )
        if self.deterministic and (rule := self.speculative().verification) != "match":
            raise ConfigError(
                f"speculative_config: with verification {rule!r} tokens depend on how many drafts "
                "are verified; use 'match', or set deterministic=False"
            )
        if self.decoder_replay not in _REPLAYS:
            raise ConfigError(f"decoder_replay {self.decoder_replay!r}: use one of {_REPLAYS}")
        if self.window_snapshot_bytes < 0:
            raise ConfigError(f"window_snapshot_bytes {self.window_snapshot_bytes}: use >= 0")
        if self.step_timeout_s is not None and not self.step_timeout_s > 0:
            raise ConfigError(f"step_timeout_s {self.step_timeout_s}: use seconds > 0, or None")

    def speculative(self) -> Speculative:
        """`speculative_config`, checked.

        Raises:
            ConfigError: it names another method, something unknown, or a value out of range.
        """
        return speculative(self.speculative_config)

    def graph_sizes(self) -> tuple[int, ...]:
        """Rows of captured decoding steps, as `Limits.graph_sizes` wants them."""
        if self.enforce_eager:
            return ()
        if self.cudagraph_capture_sizes is not None:
            return tuple(self.cudagraph_capture_sizes)
        most = self.max_num_seqs
        below = (*_GRAPH_SIZES, *range(_GRAPH_SIZES[-1] + 128, most, 128))
        return (*(size for size in below if size < most), most)

    def prompt_sizes(self) -> tuple[int, ...]:
        """Prompt tokens of captured steps, see `TorchRunner`."""
        return () if self.enforce_eager else _PROMPT_SIZES


def options_from(arguments: Mapping[str, object]) -> EngineOptions:
    """Options from keyword arguments.

    Raises:
        ConfigError: a name is unknown, belongs to something this engine does not do, or a value
            is out of range.
    """
    for name in arguments:
        value = arguments[name]
        asked = value is True or value not in (None, False, 1, "auto")
        if name in _REFUSED and asked:
            raise ConfigError(f"{name}={value!r}: {_REFUSED[name]}")
    given = {name: v for name, v in arguments.items() if name not in _REFUSED}
    unset = {name for name in engine_defaults() if given.get(name) is None}
    known = {**given, **{name: v for name, v in engine_defaults().items() if name in unset}}
    drafts = given.get("speculative_config")
    if isinstance(drafts, Mapping):  # what it leaves open, the environment may say
        said = cast("Mapping[str, object]", engine_defaults().get("speculative_config", {}))
        known["speculative_config"] = {**said, **cast("Mapping[str, object]", drafts)}
    for name in ("decoder_replay", "enforce_eager"):
        if name in known and known[name] is None:
            del known[name]
    fields = set(EngineOptions.__dataclass_fields__)
    if unknown := sorted(set(known) - fields):
        raise ConfigError(f"unknown option(s) {unknown}; known are {sorted(fields)}")
    return EngineOptions(**known)  # pyright: ignore[reportArgumentType] - checked by the class
