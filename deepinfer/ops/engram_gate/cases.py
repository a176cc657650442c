"""Inputs of `engram_gate`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("streams", "kv", "live")


def case(make: Maker, batch: Batch) -> Case:
    """Streams and recalled keys and values; about one token in eight is an image position."""
    arch, tokens = make.arch, len(batch.positions)
    m, hidden = arch.hc_mult, arch.hidden_size
    return {
        "streams": make.normal(tokens, m, hidden),
        "kv": make.normal(tokens, (m + 1) * hidden),
        "q_weight": make.gains(m, hidden),
        "k_weight": make.gains(m, hidden),
        "live": make.integers(0, 8, tokens) > 0,
        "eps": arch.rms_norm_eps,
    }
