"""Computes every output of the golden unit data with our operations, file by file.

Each producer takes the unit folder and yields (tensor name, value, condition); the condition is the
manifest's `applies_when` under which the value is judged. Knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Record, Records, RopeScaling
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.compress import CompressorWeights, compress
from deepinfer.ops.compress.reference import latents
from deepinfer.ops.engram_gate import engram_gate
from deepinfer.ops.engram_rows import EngramHash, engram_rows
from deepinfer.ops.experts import ExpertWeights, experts
from deepinfer.ops.formats import (
    Fp4Weight,
    Fp8Weight,
    decode_record,
    dequantise_fp4_weight,
    dequantise_fp8,
    encode_record,
    quantise_fp8,
)
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select import index_select
from deepinfer.ops.index_select.reference import (
    CandidateRule,
    Selection,
    block_mask,
    candidate_blocks,
    head_scores,
)
from deepinfer.ops.linear_fp8 import linear_fp8
from deepinfer.ops.mhc_boundary import HyperWeights, mhc_boundary, split_coefficients
from deepinfer.ops.mhc_collapse import mhc_collapse
from deepinfer.ops.mhc_update import Pending, mhc_update
from deepinfer.ops.norm_quantise import norm_quantise
from deepinfer.ops.products import matmul
from deepinfer.ops.rotation import frequencies, rotate, rotation
from deepinfer.ops.route import route
from deepinfer.ops.sparse_attention.reference import (
    BLOCK,
    attend,
    attend_block,
    start,
    window_back,
)
from tests.golden.compare import Golden

Outputs = Iterator[tuple[str, Tensor, str]]
BF16 = torch.bfloat16
UNROUNDED = "unit_unrounded_softmax"


def one_request(positions: Tensor, pages: int) -> Batch:
    """A batch of one request in slot 1, on pages 1, 2, ...; all tokens in one slice."""
    count = len(positions)
    return Batch(
        positions=positions,
        rows=torch.ones(count, dtype=torch.int64),
        starts=positions[:1].expand(count),
        ends=(positions[-1:] + 1).expand(count),
        lower=torch.zeros(count, dtype=torch.int64),
        cached=torch.zeros(count, dtype=torch.int64),
        slots=torch.tensor([0, 1]),
        page_table=torch.stack((torch.zeros(pages, dtype=torch.int64), torch.arange(pages) + 1)),
        slices=((0, count),),
        max_len=pages * PAGE_TOKENS,
    )


def quant(unit: Golden) -> Outputs:
    for stem, record in (
        ("fp8", Record("fp8_ue8m0_32", 64)),
        ("fp4_ue8m0", Record("fp4_ue8m0_32", 64)),
        ("fp4_e4m3", Record("fp4_e4m3_16", 32)),
    ):
        stored = encode_record(unit.tensor("quant", f"{stem}.x"), record)
        yield f"{stem}.q", stored[:, : record.code_bytes], "unit"
        yield f"{stem}.scale", stored[:, record.code_bytes :], "unit"
        yield f"{stem}.dequant", decode_record(stored, record).to(BF16), "unit"


def _fp8_fp4(x: Tensor, weight: Fp4Weight) -> Tensor:
    return matmul(dequantise_fp8(quantise_fp8(x)), dequantise_fp4_weight(weight)).to(BF16)


def gemm(unit: Golden) -> Outputs:
    def t(name: str) -> Tensor:
        return unit.tensor("gemm", name)

    y = linear_fp8.reference(t("fp8.x"), Fp8Weight(t("fp8.w"), t("fp8.scale")))
    yield "fp8.y", y, "unit"
    yield "fp8.y_f64", y, "unit"
    yield "fp4.y", _fp8_fp4(t("fp4.x"), Fp4Weight(t("fp4.w"), t("fp4.scale"))), "unit"


def mhc(unit: Golden) -> Outputs:
    for stem, iterations, eps in (("sinkhorn4", 20, 1e-6), ("sinkhorn2", 10, 1e-5)):
        u, scale, base = (unit.tensor("mhc", f"{stem}.{n}") for n in ("u", "scale", "base"))
        weights = HyperWeights(torch.empty(0), base, scale, torch.empty(0))
        split = split_coefficients(u, weights, iterations, eps)
        for name, value in split._asdict().items():
            yield f"{stem}.{name}", value, "unit"
    yield from _mhc_block(unit, "mhc", "block")


def _mhc_block(unit: Golden, file: str, stem: str) -> Outputs:
    def t(name: str) -> Tensor:
        return unit.tensor(file, f"{stem}.{name}")

    norm = torch.ones(t("x").shape[-1], dtype=BF16)
    weights = HyperWeights(t("fn"), t("base"), t("scale"), norm)
    options = {"eps": 1e-20, "hc_eps": 1e-6, "iterations": 20, "quantise": False}
    found = mhc_boundary.reference(t("x"), None, t("P"), weights, **options)
    for name in ("pre", "post", "comb"):
        yield f"{stem}.{name}", getattr(found, name), "unit"
    yield f"{stem}.collapsed", mhc_collapse.reference(t("x"), t("P"), norm, 1e-20).plain, "unit"
    pending = Pending(t("sub"), found.post, found.comb)
    yield f"{stem}.expanded", mhc_update.reference(t("x"), pending), "unit"


def norm(unit: Golden) -> Outputs:
    for eps in ("1e-20", "1e-06"):
        x, w = unit.tensor("norm", f"x.{eps}"), unit.tensor("norm", f"w.{eps}")
        yield (
            f"y.{eps}",
            norm_quantise.reference(x, w, eps=float(eps), quantise=False).hidden,
            "unit",
        )


def attention(unit: Golden) -> Outputs:
    for stem in ("small", "real"):
        q, kv, sink, idx = (
            unit.tensor("attention", f"{stem}.{n}") for n in ("q", "kv", "sink", "idx")
        )
        keys, visible = kv[idx.long().clamp(min=0)].float(), idx >= 0
        scale = q.shape[-1] ** -0.5
        rounded = attend(q, keys, visible, sink, scale)
        yield f"{stem}.out", rounded, "unit"
        yield f"{stem}.out_f64", rounded.float(), "unit"
        exact = attend(q.float(), keys, visible, sink, scale)
        yield f"{stem}.out_f64", exact.to(BF16).float(), UNROUNDED  # stored as bf16 values
    for window, tokens in ((16, 7), (16, 40), (128, 130)):
        batch = one_request(torch.arange(tokens), 2)
        back, used = window_back(batch, window)
        seen = torch.where(used, batch.positions.unsqueeze(1) - back, -1)
        yield f"window_idx.{window}.{tokens}", seen, "unit"


def attention_long(unit: Golden) -> Outputs:
    def t(name: str) -> Tensor:
        return unit.tensor("attention_long", name)

    window = unit.records("attention_long", "window")
    latent = unit.records("attention_long", "latent")
    ids = torch.cat((t("window_idx"), t("latent_idx")), dim=1)
    keys = torch.cat(
        (window[t("window_idx").long().clamp(min=0)], latent[t("latent_idx").long().clamp(min=0)]),
        dim=1,
    )
    q, scale = t("q"), t("q").shape[-1] ** -0.5
    rounded = attend(q, keys, ids >= 0, t("sink"), scale)
    yield "out", rounded, "unit"
    yield "out_f64", rounded.float(), "unit"
    yield "out_f64", attend(q.float(), keys, ids >= 0, t("sink"), scale), UNROUNDED
    state, highs = start(q), []
    for low in range(0, ids.shape[1], BLOCK):
        slots = slice(low, low + BLOCK)
        state = attend_block(state, q, keys[:, slots], ids[:, slots] >= 0, scale)
        highs.append(torch.where(state.total > 0, state.high, -torch.inf))
    yield "running_max", torch.cat(highs, dim=-1), "unit"
    yield "lse", (state.high + state.total.log()).squeeze(-1), "unit"


def _yarn(original: int, factor: float, fast: float, slow: float) -> RopeScaling | None:
    return RopeScaling(factor, fast, slow, original) if original else None


def rope(unit: Golden) -> Outputs:
    for stem, dim, theta, original, factor, fast, slow in (
        ("plain", 64, 10000, 0, 16, 32, 1),
        ("yarn", 64, 160000, 65536, 16, 32, 1),
        ("yarn_a", 16, 160000, 4096, 16, 32, 1),
        ("yarn_b", 32, 40000, 2048, 8, 24, 2),
        ("plain_b", 32, 5000, 0, 8, 24, 2),
    ):
        freqs = frequencies(dim, theta, _yarn(original, factor, fast, slow))
        by = rotation(unit.tensor("rope", "positions"), freqs)
        yield f"{stem}.cos", by.cos, "unit"
        yield f"{stem}.sin", by.sin, "unit"
        yield f"{stem}.y", rotate(unit.tensor("rope", f"{stem}.x"), by), "unit"
        back = rotate(unit.tensor("rope", f"{stem}.y"), by, inverse=True)
        yield f"{stem}.y_inv", back, "unit"


def compressor(unit: Golden) -> Outputs:
    for ratio in (1, 2):
        for tokens in (1, 2, 9):
            yield from _compressor(unit, ratio, tokens)


def _compressor(unit: Golden, ratio: int, tokens: int) -> Outputs:
    def t(name: str) -> Tensor:
        return unit.tensor("compressor", f"r{ratio}.{name}")

    case = f"r{ratio}.T{tokens}"
    hidden, width = t(f"T{tokens}.h"), t("norm").shape[0]
    gate = t("wgate") if ratio == 2 else None
    weights = CompressorWeights(
        t("wkv"), gate, t("norm"), torch.eye(32, width, dtype=BF16), torch.ones(32, dtype=BF16)
    )
    records = Records(
        Record("fp8_ue8m0_32", width), Record("fp4_e4m3_16", width), Record("fp4_ue8m0_32", 32)
    )
    batch = one_request(torch.arange(tokens), 1)
    pairs = torch.zeros(2, 14, 2, width) if ratio == 2 else None
    entries = PAGE_TOKENS // ratio
    pages = PageViews(
        *(
            torch.zeros(2, entries, size, dtype=torch.uint8)
            for size in (records.latent.bytes, 16, 1)
        )
    )
    complete = torch.arange(ratio - 1, tokens, ratio)
    yield f"{case}.latent", latents(hidden, weights, batch, pairs, 1e-20)[complete], "unit"
    freqs = frequencies(16, 160000, _yarn(4096, 16, 32, 1))
    compress.reference(hidden, weights, batch, pairs, pages, freqs, eps=1e-20, records=records)
    if len(complete):
        stored = pages.latents[1, : len(complete)]
        yield f"{case}.cached", decode_record(stored, records.latent).to(BF16), "unit"
    if pairs is not None and tokens % 2:
        pending = pairs[1, (tokens - 1) % pairs.shape[1]]
        yield f"{case}.pending_kv", pending[0], "unit"
        yield f"{case}.pending_gate", pending[1], "unit"


def router(unit: Golden) -> Outputs:
    for stem, topk in (("real", 6), ("draft", 3)):
        x, weight, bias, bias_vl, image = (
            unit.tensor("router", f"{stem}.{n}")
            for n in ("x", "weight", "bias", "bias_vl", "image_mask")
        )
        per_token = torch.where(image.bool().unsqueeze(1), bias_vl, bias)
        found = route.reference(x, weight, per_token, topk=topk, scaling=1.5)
        ids, order = found.topk_idx.sort(dim=1)
        yield f"{stem}.ids", ids, "unit"
        yield f"{stem}.weights", found.topk_weights.gather(1, order), "unit"


def expert(unit: Golden) -> Outputs:
    def t(name: str) -> Tensor:
        return unit.tensor("expert", name)

    w13 = Fp4Weight(*(torch.cat((t(f"w1.{n}"), t(f"w3.{n}")))[None] for n in ("weight", "scale")))
    weights = ExpertWeights(w13, Fp4Weight(t("w2.weight")[None], t("w2.scale")[None]))
    x = quantise_fp8(t("x"))
    first = torch.zeros(len(t("x")), 1, dtype=torch.int64)
    for name, share in (("y", t("route_weight")), ("y_unweighted", torch.ones(len(first), 1))):
        yield name, experts.reference(x, first, share, weights, limit=2.0).to(BF16), "unit"


def _gate(unit: Golden, file: str, stem: str) -> Outputs:
    x, kv, q_weight, k_weight, mask = (
        unit.tensor(file, f"{stem}.{n}") for n in ("x", "kv", "q_weight", "k_weight", "mask")
    )
    found = engram_gate.reference(x, kv, q_weight, k_weight, mask.bool(), eps=1e-20)
    yield f"{stem}.gate", found.gate, "unit"
    yield f"{stem}.out", found.streams, "unit"


def hash_windows(ids: Tensor, alive: Tensor, width: int) -> Tensor:
    """Token ids of each position and those before it, newest first, -1 = absent or dead."""
    padded = torch.cat((torch.full((width - 1,), -1), torch.where(alive, ids.long(), -1)))
    return padded.unfold(0, width, 1).flip(1)


def engram(unit: Golden) -> Outputs:
    """The gate, and row ids from the stored constants (the constants have their own tests)."""
    yield from _gate(unit, "engram", "gate")
    classes, many, primes, offsets = (
        unit.tensor("engram", f"real.{n}").long()
        for n in ("token_map", "multipliers", "primes", "offsets")
    )
    tables = [
        EngramHash(classes, many[i], primes[i].flatten(), offsets[i], int(classes[2]))
        for i in range(2)
    ]
    texts = {f"t{i}": unit.tensor("engram", f"real.t{i}.ids") for i in range(4)}
    alive = {name: torch.ones(len(ids), dtype=torch.bool) for name, ids in texts.items()}
    texts["masked"], alive["masked"] = texts["t0"], unit.tensor("engram", "real.masked.mask").bool()
    for name, ids in texts.items():
        window = hash_windows(ids, alive[name], many.shape[1])
        rows = torch.stack([engram_rows.reference(window, table) for table in tables])
        yield f"real.{name}.rows", rows, "unit"


def candidates(unit: Golden) -> Outputs:
    for stem, rule in (
        ("a", CandidateRule(3, 4)),
        ("b", CandidateRule(2, 8)),
        ("c", CandidateRule(4, 8)),
    ):
        score = unit.tensor("candidates", f"{stem}.score")
        lens = unit.tensor("candidates", f"{stem}.lens").long()
        blocks = candidate_blocks(score, lens, rule)
        yield f"{stem}.mask", block_mask(blocks, rule, score.shape[1]).to(torch.uint8), "unit"


def index_topk(unit: Golden) -> Outputs:
    rule = CandidateRule(96, 8)
    score, chosen = _index(unit, "", unit.tensor("index_topk", "lens").long(), rule)
    yield "score", score, "unit"
    yield "select.64", chosen(64).ids, "unit"
    yield "select.512", chosen(512).ids, "unit"
    blocks = chosen(512, publish=True).blocks
    assert blocks is not None
    yield "candidates", block_mask(blocks, rule, 2000).to(torch.uint8), "unit"
    yield "select_candidates.512", chosen(512, blocks=blocks).ids, "unit"
    score, chosen = _index(unit, "random.", torch.full((4,), 2000), rule)
    yield "random.score", score, "unit"
    yield "random.select.512", chosen(512).ids, "unit"
    ranked = score.sort(dim=-1, descending=True).values
    yield "random.margin.512", ranked[:, 511] - ranked[:, 512], "unit"


def _index(
    unit: Golden, stem: str, lens: Tensor, rule: CandidateRule
) -> tuple[Tensor, Callable[..., Selection]]:
    """Scores of all keys, and the selection as a function of top-k, `blocks` and `publish`."""

    def t(name: str) -> Tensor:
        return unit.tensor("index_topk", stem + name)

    record = Record("fp4_ue8m0_32", 128)
    queries = IndexQueries(torch.cat((t("q.codes"), t("q.scale")), -1), t("weights"))
    keys = torch.cat((t("k.codes"), t("k.scale")), -1)
    decoded = decode_record(queries.records, record)
    score = head_scores(decoded, queries.weights, decode_record(keys, record))
    batch = one_request((2 * lens - 1).clamp(min=0), 32)  # ratio 2: `lens` entries visible
    pages = _key_pages(keys, record)

    def chosen(topk: int, *, blocks: Tensor | None = None, publish: bool = False) -> Selection:
        return index_select.reference(
            queries, batch, pages, blocks, topk=topk, rule=rule, publish=publish, record=record
        )

    return score, chosen


def _key_pages(keys: Tensor, record: Record) -> PageViews:
    """Put index keys on pages 1, 2, ... of 64 entries; the rest of the last page is zero."""
    entries = PAGE_TOKENS // 2
    filled = torch.nn.functional.pad(keys, (0, 0, entries, -len(keys) % entries))
    filled = filled.unflatten(0, (-1, entries))
    codes, scales = filled.split((record.code_bytes, record.scale_bytes), dim=-1)
    return PageViews(torch.zeros(len(filled), entries, 1, dtype=torch.uint8), codes, scales)


def wide(unit: Golden) -> Outputs:
    def t(name: str) -> Tensor:
        return unit.tensor("wide", name)

    yield from _mhc_block(unit, "wide", "mhc")
    yield from _gate(unit, "wide", "engram")
    normed = norm_quantise.reference(t("norm.x"), t("norm.w"), eps=1e-20, quantise=False)
    yield "norm.y", normed.hidden, "unit"
    pair = quantise_fp8(t("linear.x"))
    yield "linear.xq", pair.codes, "unit"
    yield "linear.xs", pair.scale, "unit"
    w8 = Fp8Weight(t("linear.w8"), t("linear.w8.scale"))
    yield "linear.y8", linear_fp8.reference(pair, w8), "unit"
    w4 = Fp4Weight(t("linear.w4"), t("linear.w4.scale"))
    yield "linear.y4", _fp8_fp4(t("linear.x"), w4), "unit"


PRODUCERS: dict[str, Callable[[Golden], Outputs]] = {
    make.__name__: make
    for make in (
        quant, gemm, mhc, norm, attention, attention_long, rope, compressor, router, expert,
        engram, candidates, index_topk, wide,
    )
}  # fmt: skip

__all__ = ["PRODUCERS", "Outputs", "hash_windows", "one_request"]
