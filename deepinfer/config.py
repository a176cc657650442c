"""Settings that come from outside, and the only reader of the environment.

It holds the table of `DEEPINFER_*` names: those of this package and those of the original engine
(deepinfer 0.1.0), each taken, ignored with a warning, or refused with a sentence. It does not know
what a model or a device is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deepinfer.errors import ConfigError

PREFIX = "DEEPINFER_"
_OFF = frozenset({"", "0", "false", "False"})  # the original's spellings of "no"

Kind = Literal["taken", "ignored", "refused"]


@dataclass(frozen=True)
class EnvName:
    """What becomes of one environment variable.

    `says`: where a taken name goes, why a name is ignored, or what to do instead of a refused one.
    `fine`: values that ask for what happens anyway; they pass without a word.
    """

    kind: Kind
    says: str
    fine: frozenset[str] = frozenset({""})


def _ignored(says: str, *fine: str) -> EnvName:
    return EnvName("ignored", says, frozenset({"", *fine}))


def _refused(says: str, *fine: str) -> EnvName:
    return EnvName("refused", says, frozenset({"", *fine}))


def _switch(says: str) -> EnvName:
    """A feature that is off in this engine: asking for it is refused, "off" is fine."""
    return EnvName("refused", says, _OFF)


_GRAPH_SIZES = "captured row counts are an option of the engine (cudagraph_capture_sizes)"
_NO_CURVE = "times of steps are learned while they run (see profile_seconds), never kept in files"
_NO_EPLB = "expert replicas and their placement (EPLB) are not implemented"
_NO_IMAGES = "image input is not implemented"
_GRAMMAR_LIMITS = "compilation has fixed limits (grammar/limits.py), and what it found is kept"
_NO_PROFILER = "the profile server is not implemented; use torch.profiler from outside"
_NO_DISTRIBUTED = "runs on several ranks are not implemented"

ENVIRONMENT: Mapping[str, EnvName] = {
    # Of this package.
    "CACHE_DIR": EnvName("taken", "directory of built files: config.cache_dir"),
    "GOLDEN": EnvName("taken", "golden data of the test suite: tests/conftest.py"),
    # Of the original: which machine, which model.
    "ACCELERATOR": _refused("the device is an argument of the command, not of the environment"),
    "HF_MODEL_DIR": _refused("name the checkpoint directory on the command line"),
    "JIT_CACHE_DIR": _ignored("nothing is compiled at run time"),
    # Speculation.
    "USE_NEXTN_DECODE": EnvName("taken", "default of num_speculative_tokens"),
    "ENABLE_MTP_VARLEN": EnvName("taken", "default of policy in speculative_config: adaptive"),
    "MAX_BACKTRACKING_TOKENS": _ignored("ring lengths follow from the config of the model"),
    "DFLASH_CONFIDENCE_HEAD_TEMPERATURE": EnvName(
        "taken", "default of temperature in speculative_config, one or several with commas"
    ),
    "DECODE_PERF_CACHE_DIR": _ignored(_NO_CURVE),
    "DECODE_PERF_CACHE_TTL_SEC": _ignored(_NO_CURVE),
    # Graphs.
    "ENFORCE_EAGER": EnvName("taken", "default of enforce_eager"),
    "DFLASH_ENFORCE_EAGER": _ignored("drafts are captured with the steps they belong to"),
    "CUDAGRAPH_BATCH_SIZE_INTERVAL": _ignored(_GRAPH_SIZES),
    "DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL": _ignored(_GRAPH_SIZES),
    "DISABLE_SYNC_GUARD": _ignored("there is no guard against implicit synchronisation"),
    # Scheduling and memory.
    "ZERO_OVERHEAD_SCHEDULING": _ignored(
        "asynchronous scheduling is an option of the engine (async_scheduling)"
    ),
    "PREFILL_ATTEMPT_INTERVAL": _ignored("ranks do not vote on prefill"),
    "PREFILL_ANY_ATTEMPT_INTERVAL": _ignored("ranks do not vote on prefill"),
    "PREFILL_MAX_SUM_SEQLEN_K": _refused("a cap on the context sum of a batch is not implemented"),
    "INDEX_ATTN_MEMORY_LIMIT": _ignored("the size of score buffers is fixed"),
    "NUM_STATE_SLOTS_RATIO": _ignored("a slot is kept for each running request"),
    "PREFILL_STORE_EXTRA_STATE": _switch("a longer window ring for storage is not implemented"),
    "PREFILL_STORE_EXTRA_STATE_SIZE": _ignored("a longer window ring is not implemented"),
    "YOCO_PREFILL_TRUNCATION_MODE": EnvName("taken", "default of decoder_replay"),
    "YOCO_PREFILL_KEEP_TOKENS": EnvName("taken", "default of decoder_keep"),
    # Sampling and numerics.
    "BATCH_INVARIANT": _ignored(
        "results never depend on the batch here, it cannot be turned off", "1", "true", "True"
    ),
    "SAMPLER_FORCE_TOPK": _refused("set top_k in the sampling parameters of a request", "0"),
    "DECODE_TOKEN_BLACKLIST": _refused("a list of forbidden tokens is not implemented"),
    "COMPUTE_SUM_SMALLER_PROBS": _switch("the sum of smaller probabilities is not implemented"),
    # Engram.
    "ENGRAM_PAD_TOKEN": _refused("the pad token is engram_pad_token_id of config.json", "2"),
    "ENGRAM_FORCE_GPU_STORAGE": _refused("where the tables lie is an argument of the loader"),
    # Structured output.
    "XGRAMMAR_TIMEOUT": _ignored(_GRAMMAR_LIMITS),
    "XGRAMMAR_DISABLE_CACHE": _ignored(_GRAMMAR_LIMITS),
    "XGRAMMAR_CACHE_LIMIT_BYTES": _ignored(_GRAMMAR_LIMITS),
    "XGRAMMAR_DEBUG": _ignored("another library makes the masks"),
    "SO_BUILDER_CPUS": _ignored("two processes compile"),
    # Several ranks.
    "NCCL_NUM_SMS": _refused(_NO_DISTRIBUTED),
    "USERBUFFER_COMM_SMS": _refused(_NO_DISTRIBUTED, "0"),
    "GLOO_TIMEOUT": _refused(_NO_DISTRIBUTED),
    "NCCL_MEMORY_SAMPLE_INTERVAL_STEPS": _ignored(_NO_DISTRIBUTED),
    "RINGBUFFER_WARNING_INTERVAL": _ignored(_NO_DISTRIBUTED),
    "OVERRIDE_NUM_EXTRA_EXPERTS": _refused(_NO_EPLB, "0"),
    "EXPERT_REARRANGEMENT_STEP_INTERVAL": _refused(_NO_EPLB, "0"),
    "EXPERT_COUNT_WINDOW_SIZE": _ignored(_NO_EPLB),
    "REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE": _switch(_NO_EPLB),
    "REARRANGE_P2P_GROUPS": _ignored(_NO_EPLB),
    "MOE_LB_STAT_INTERVAL": _ignored(_NO_EPLB),
    "SHOW_EPLB_DETAIL": _switch(_NO_EPLB),
    "FORCE_LOAD_BALANCE": _switch("routing is never replaced by random routing"),
    "FORCE_IMBALANCE_RATIO": _refused("routing is never skewed on purpose", "0", "0.0"),
    # Images.
    "USE_MULTIMODAL_POOL": _ignored(_NO_IMAGES),
    "MULTIMODAL_POOL_SIZE_GB": _ignored(_NO_IMAGES),
    "MULTI_MODAL_BUFFER_SIZE": _ignored(_NO_IMAGES),
    "MULTI_MODAL_WORKER_TIMEOUT": _ignored(_NO_IMAGES),
    # Logging and profiling.
    "LOGGING_INTERVAL_STEP": _ignored("there is no periodic statistics line"),
    "GC_INTERVAL_STEP": _ignored("Python's own garbage collection is left alone"),
    "PROFILE_HTTP_ENABLE": _switch(_NO_PROFILER),
    "PROFILE_HTTP_PORT_BASE": _ignored(_NO_PROFILER),
    "TORCH_PROFILER_DIR": _ignored(_NO_PROFILER),
    "PROFILE_TORCH_CUDA_MEMORY": _refused("memory snapshots are not implemented"),
    "ENABLE_MEMORY_TRACING": _switch("memory snapshots are not implemented"),
}


def check_environment(environ: Mapping[str, str] | None = None) -> list[str]:
    """Judge every `DEEPINFER_*` variable before anything else runs.

    Args:
        environ: variables by name; None reads those of the process.

    Returns:
        One warning for each variable that is set but has no effect.

    Raises:
        ConfigError: a variable is unknown, or asks for what this engine does not do; all such
            variables are listed.
    """
    environ = os.environ if environ is None else environ
    warnings: list[str] = []
    faults: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        value = environ[variable]
        entry = ENVIRONMENT.get(variable.removeprefix(PREFIX))
        if entry is None:
            faults.append(f"{variable}: no such setting; unset it")
        elif value in entry.fine or entry.kind == "taken":
            continue
        elif entry.kind == "ignored":
            warnings.append(f"{variable}={value!r} has no effect: {entry.says}")
        else:
            faults.append(f"{variable}={value!r} is refused: {entry.says}")
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise ConfigError(f"environment: {len(faults)} problem(s)\n{listed}")
    return warnings


def engine_defaults(environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """Options of the engine that the environment sets, by their name; arguments go before them.

    Args:
        environ: variables by name; None reads those of the process.

    Raises:
        ConfigError: a value is no such option.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, object] = {}
    if mode := environ.get(f"{PREFIX}YOCO_PREFILL_TRUNCATION_MODE", ""):
        found["decoder_replay"] = mode
    keep = environ.get(f"{PREFIX}YOCO_PREFILL_KEEP_TOKENS", "")
    if keep not in ("", "0"):  # 0 is the original's "no value"
        if not keep.isdecimal():
            raise ConfigError(f"{PREFIX}YOCO_PREFILL_KEEP_TOKENS={keep!r}: use an integer >= 0")
        found["decoder_keep"] = int(keep)
    if drafts := _drafts(environ):
        found["speculative_config"] = drafts
    if environ.get(f"{PREFIX}ENFORCE_EAGER", "") not in _OFF:
        found["enforce_eager"] = True
    return found


def _drafts(environ: Mapping[str, str]) -> dict[str, object]:
    """What the environment says of drafts, as `speculative_config`; {} = nothing.

    Asking for a variable number of drafts asks for drafts: five, the original's default.
    """
    found: dict[str, object] = {}
    adaptive = environ.get(f"{PREFIX}ENABLE_MTP_VARLEN", "") not in _OFF
    drafts = environ.get(f"{PREFIX}USE_NEXTN_DECODE", "") or ("5" if adaptive else "0")
    if not drafts.isdecimal():
        raise ConfigError(f"{PREFIX}USE_NEXTN_DECODE={drafts!r}: use an integer >= 0")
    if adaptive:
        found["policy"] = "adaptive"
    temperature = environ.get(f"{PREFIX}DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "")
    if temperature:
        try:
            found["temperature"] = [float(value) for value in temperature.split(",")]
        except ValueError as error:
            raise ConfigError(
                f"{PREFIX}DFLASH_CONFIDENCE_HEAD_TEMPERATURE={temperature!r}: use a number, or "
                "several with commas"
            ) from error
    if found or int(drafts):
        found["num_speculative_tokens"] = int(drafts)
    return found


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Directory for files that deepinfer builds and may rebuild; it need not exist.

    `DEEPINFER_CACHE_DIR`, else `deepinfer` under the XDG cache home (`XDG_CACHE_HOME`, else
    `~/.cache`).

    Args:
        environ: variables by name; None reads those of the process.

    Raises:
        ConfigError: `DEEPINFER_CACHE_DIR` is a relative path or names something not a directory.
    """
    environ = os.environ if environ is None else environ
    named = environ.get(f"{PREFIX}CACHE_DIR", "")
    if named:
        place = Path(named).expanduser()
        if not place.is_absolute() or (place.exists() and not place.is_dir()):
            raise ConfigError(
                f"{PREFIX}CACHE_DIR={named!r}: give an absolute path of a directory; it is "
                "made when needed"
            )
        return place
    home = Path(environ.get("XDG_CACHE_HOME", ""))
    # The XDG rules say that a relative value counts as unset.
    return (home if home.is_absolute() else Path.home() / ".cache") / "deepinfer"
