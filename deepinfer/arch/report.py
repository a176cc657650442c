"""What `deepinfer inspect` says of a model: parameters, bytes and cache sizes, from `Arch` alone.

Pure functions: `report` makes the data, `format_report` and `report_json` the text. Knows nothing
of files or of the memory that a device has. Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from deepinfer.arch.layout import PAGE_TOKENS, OwnerSection, PageLayout, SlotLayout
from deepinfer.arch.spec import Arch
from deepinfer.arch.tensors import TensorSpec, tensor_specs

CONTEXTS = (4_096, 32_768, 131_072, 1_048_576)  # tokens; longer than the model allows is left out


@dataclass(frozen=True)
class Share:
    """Tensors that are counted together; scales count as bytes, not as parameters."""

    name: str
    tensors: int
    params: int
    bytes: int


@dataclass(frozen=True)
class Active:
    """Parameters that one token multiplies with; embedding rows and Engram rows are look-ups.

    `prefill`: the layers below the boundary layer, with their Engram projections, compressors and
    indexers; the compressor of the boundary layer, which such a token meets too, is left out.
    `decode`: all layers and the head. Draft stages are not counted.
    Source: `spec/model.md` 15.1.
    """

    per_layer: int
    prefill: int
    decode: int


@dataclass(frozen=True)
class Rings:
    """Rings of one kind in a slot: `count` rings of `rows` rows, `ring_bytes` each with padding."""

    name: str
    count: int
    rows: int
    ring_bytes: int


@dataclass(frozen=True)
class Context:
    """Cache of one request of `tokens` tokens: whole pages and one slot, in bytes."""

    tokens: int
    pages: int
    page_bytes: int
    bytes: int


@dataclass(frozen=True)
class Cache:
    """Cache sizes in bytes, records as in the release."""

    bytes_per_token: float
    page_tokens: int
    page_bytes: int
    owners: tuple[OwnerSection, ...]
    slot_bytes: int
    rings: tuple[Rings, ...]
    contexts: tuple[Context, ...]


@dataclass(frozen=True)
class Report:
    """All facts of `deepinfer inspect`; the lists of shares each add up to `total`."""

    total: Share
    parts: tuple[Share, ...]
    dtypes: tuple[Share, ...]
    roles: tuple[Share, ...]
    layer: tuple[Share, ...]
    active: Active
    cache: Cache


def report(arch: Arch) -> Report:
    """Count the tensors and the cache of `arch`; a second for the release."""
    specs = tensor_specs(arch)
    return Report(
        total=_share("total", specs),
        parts=_shares(specs, lambda spec: spec.part),
        dtypes=_shares(specs, lambda spec: spec.dtype),
        roles=_shares(specs, lambda spec: spec.role),
        layer=_layer(specs),
        active=_active(arch, specs),
        cache=_cache(arch),
    )


def component(spec: TensorSpec) -> str:
    """The component of a backbone layer or draft stage that a tensor belongs to.

    "attention" are the five projections without norms and sinks; "" for a tensor outside layers.
    """
    prefix, _, rest = spec.name.partition(".")
    _, _, rest = rest.partition(".")
    if prefix not in ("layers", "mtp"):
        return ""
    kinds = {
        "attn.compressor": "compressor",
        "attn.indexer.wk": "compressor",  # index keys are made where entries are made
        "attn.indexer.k_norm": "compressor",
        "attn.indexer": "indexer",
        "attn.w": "attention",
        "ffn.gate": "gate",
        "ffn.experts": "routed experts",
        "ffn.shared_experts": "shared expert",
        "hc_": "mHC",
        "engram.embed": "engram table",
        "engram": "engram projections",
    }
    return next((kind for start, kind in kinds.items() if rest.startswith(start)), "norms, sinks")


def _share(name: str, specs: Iterable[TensorSpec]) -> Share:
    members = list(specs)
    return Share(
        name,
        len(members),
        sum(spec.params for spec in members),
        sum(spec.bytes for spec in members),
    )


def _shares(specs: Iterable[TensorSpec], key: Callable[[TensorSpec], str]) -> tuple[Share, ...]:
    """One share a key, in the order of first appearance."""
    groups: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        groups.setdefault(key(spec), []).append(spec)
    return tuple(_share(name, members) for name, members in groups.items())


def _layer(specs: Iterable[TensorSpec]) -> tuple[Share, ...]:
    """Components that every layer has, measured on layer 0, and one of its experts."""
    first = [spec for spec in specs if spec.name.startswith("layers.0.")]
    expert = [spec for spec in first if spec.name.startswith("layers.0.ffn.experts.0.")]
    own = ("engram table", "engram projections", "compressor", "indexer")
    shared = [spec for spec in first if component(spec) not in own]
    return (*_shares(shared, component), _share("one routed expert", expert))


def _active(arch: Arch, specs: Iterable[TensorSpec]) -> Active:
    """Small vectors (norms, sinks) are left out, as they multiply no matrix."""
    boundary = arch.num_hidden_layers if arch.boundary_layer is None else arch.boundary_layer
    per_layer = prefill = decode = 0
    for spec in specs:
        if spec.name == "head.weight":
            decode += spec.params
        kind = component(spec)
        if not spec.name.startswith("layers.") or kind in ("norms, sinks", "engram table"):
            continue
        params = spec.params
        if kind == "routed experts":
            params = params * arch.num_experts_per_tok // arch.n_routed_experts
        index = int(spec.name.split(".")[1])
        decode += params
        if index < boundary:
            prefill += params
        if index == 0 and kind not in ("engram projections", "compressor", "indexer"):
            per_layer += params
    return Active(per_layer, prefill, decode)


def _cache(arch: Arch) -> Cache:
    page, slot = PageLayout.of(arch), SlotLayout.of(arch)
    rings_end = slot.pairs[0] if slot.pairs else slot.bytes
    ring = rings_end // (len(slot.window) + len(slot.draft))
    rings = [Rings("window", len(slot.window), slot.ring_rows, ring)]
    if slot.draft:
        rings.append(Rings("draft", len(slot.draft), slot.ring_rows, ring))
    if slot.pairs:
        pair = (slot.bytes - rings_end) // len(slot.pairs)
        rings.append(Rings("open pairs", len(slot.pairs), slot.pair_rows, pair))
    contexts: list[Context] = []
    for tokens in sorted({min(n, arch.max_position_embeddings) for n in CONTEXTS}):
        pages = -(-tokens // PAGE_TOKENS)
        paged = pages * page.bytes
        contexts.append(Context(tokens, pages, paged, paged + slot.bytes))
    return Cache(
        bytes_per_token=page.bytes_per_token,
        page_tokens=PAGE_TOKENS,
        page_bytes=page.bytes,
        owners=page.owners,
        slot_bytes=slot.bytes,
        rings=tuple(rings),
        contexts=tuple(contexts),
    )


def report_json(facts: Report) -> str:
    """The report as one JSON object; the field names are those of the dataclasses here."""
    return json.dumps(asdict(facts), indent=2)


def format_report(facts: Report) -> str:
    """The report as text for a terminal, at most 100 columns."""
    lines = [
        f"{_short(facts.total.params)} parameters ({facts.total.params:,}), "
        f"{facts.total.bytes / 1e9:.2f} GB ({facts.total.bytes:,} bytes) "
        f"in {facts.total.tensors:,} tensors"
    ]
    for title, shares in (
        ("part", facts.parts),
        ("dtype", facts.dtypes),
        ("role", facts.roles),
        ("in each layer", facts.layer),
    ):
        lines += ["", f"{title:<24}{'tensors':>10}{'parameters':>20}{'bytes':>20}"]
        lines += [f"  {s.name:<22}{s.tensors:>10,}{s.params:>20,}{s.bytes:>20,}" for s in shares]
    active = facts.active
    lines += [
        "",
        f"active parameters       {_short(active.per_layer)} a layer, "
        f"{_short(active.prefill)} a prefill token, {_short(active.decode)} a decode token",
    ]
    return "\n".join([*lines, "", *_format_cache(facts.cache)])


def _format_cache(cache: Cache) -> list[str]:
    lines = [
        f"cache                   {cache.bytes_per_token:g} B a token, "
        f"{cache.page_bytes:,} B a page of {cache.page_tokens} tokens, "
        f"{cache.slot_bytes:,} B a slot"
    ]
    if cache.owners:
        lines.append("  page section  entries   latents at  key codes at  key scales at       end")
    lines += [
        f"  layer {o.layer:<8}{o.entries:>7}{o.latents:>13,}{o.key_codes:>14,}"
        f"{o.key_scales:>15,}{o.end:>10,}"
        for o in cache.owners
    ]
    lines.append("  slot section    rings   rows       bytes each           bytes")
    lines += [
        f"  {r.name:<14}{r.count:>7}{r.rows:>7}{r.ring_bytes:>17,}{r.count * r.ring_bytes:>16,}"
        for r in cache.rings
    ]
    lines.append("  one request of       pages      page bytes   with its slot")
    lines += [
        f"  {c.tokens:>9,} tokens{c.pages:>10,}{c.page_bytes:>16,}{c.bytes:>16,}"
        for c in cache.contexts
    ]
    return lines


def _short(params: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if params >= size:
            digits = 1 if params >= 100 * size else 2
            return f"{params / size:.{digits}f} {unit}"
    return str(params)
