"""Inputs of `compress`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.compress.reference import CompressorWeights
from deepinfer.ops.rotation import layer_frequencies

PER_TOKEN = ("hidden", "batch")


def case(make: Maker, batch: Batch, *, ratio: int = 2) -> Case:
    """An owner layer of `ratio`; pages and pair ring are full of earlier values."""
    arch = make.arch
    pairs = None
    if ratio == 2:
        pairs = make.wide(len(batch.slots), arch.pair_rows, 2, arch.head_dim)
    return {
        "hidden": make.normal(len(batch.positions), arch.hidden_size),
        "weights": CompressorWeights(
            wkv=make.plain(arch.head_dim, arch.hidden_size),
            wgate=make.plain(arch.head_dim, arch.hidden_size) if ratio == 2 else None,
            norm=make.gains(arch.head_dim),
            wk=make.plain(arch.index_head_dim, arch.head_dim),
            k_norm=make.gains(arch.index_head_dim),
        ),
        "batch": batch,
        "pairs": pairs,
        "pages": make.pages(batch, ratio),
        "freqs": layer_frequencies(arch)[1].to(make.device),
        "eps": arch.rms_norm_eps,
        "records": make.records,
    }
