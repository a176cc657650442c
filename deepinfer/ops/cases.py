"""Random inputs of operations, for tests and benches: one maker, one `cases.py` an operation.

Every `cases.py` has `case(make, batch)`, which returns the reference's arguments by name, and
`PER_TOKEN`, the names of those with one row a token. Knows no operation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Arch, PageLayout, Record, Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.formats import Fp4Weight, Fp8Weight, Quantised, encode_record, quantise_fp8
from deepinfer.ops.rotation import Rotation, layer_frequencies, rotation

Case = dict[str, Any]


@dataclass
class Table:
    """What is known of rows, for operations that read or change it; row 0 is reserved.

    The fields have names, shapes and dtypes of `Rows`, `RowTable` and the drafts' temperatures.
    """

    tokens: Tensor
    length: Tensor
    limit: Tensor
    slot: Tensor
    decoder_start: Tensor
    lower: Tensor
    cached: Tensor
    drafts: Tensor
    cap: Tensor
    ended: Tensor
    end_id: Tensor
    stop_ids: Tensor
    confidence: Tensor
    temperature: Tensor
    budget: Tensor


class Maker:
    """Draws tensors of an architecture's shapes from one seeded stream.

    Args:
        arch: sizes.
        quantised: formats of the release (bf16, FP8, FP4), or plain fp32 debug numerics.
        seed: of the stream; the same seed gives the same numbers on the same kind of device.
        device: where the tensors lie.
    """

    def __init__(
        self,
        arch: Arch,
        *,
        quantised: bool = True,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ):
        self.arch = arch
        self.quantised = quantised
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if quantised else torch.float32
        self.records = Records.of(arch, quantised=quantised)
        self._stream = torch.Generator(self.device).manual_seed(seed)

    def wide(self, *shape: int, size: float = 1.0) -> Tensor:
        """Normal fp32 numbers with standard deviation `size`."""
        return size * torch.randn(shape, generator=self._stream, device=self.device)

    def normal(self, *shape: int, size: float = 1.0) -> Tensor:
        """Normal numbers in the activation dtype."""
        return self.wide(*shape, size=size).to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """int64 in [low, high)."""
        return torch.randint(low, high, shape, generator=self._stream, device=self.device)

    def gains(self, *shape: int) -> Tensor:
        """Norm weights around 1."""
        return (1 + self.wide(*shape, size=0.2)).to(self.dtype)

    def hidden(self, tokens: int, width: int) -> Tensor | Quantised:
        """Input of quantised products: an FP8 pair, or plain in debug numerics."""
        values = self.normal(tokens, width)
        return quantise_fp8(values) if self.quantised else values

    def plain(self, out: int, inner: int) -> Tensor:
        """A weight that is never quantised; rows of norm about 1."""
        return self.normal(out, inner, size=inner**-0.5)

    def fp8(self, out: int, inner: int) -> Fp8Weight | Tensor:
        """A block-scaled FP8 weight of ordinary size, or plain in debug numerics."""
        if not self.quantised:
            return self.plain(out, inner)
        codes = self.wide(out, inner, size=40.0).clamp(-448, 448).to(torch.float8_e4m3fn)
        near = 127 - round(0.5 * torch.tensor(inner * 1600.0).log2().item())
        scale = self.integers(near - 1, near + 2, -(-out // 32), -(-inner // 32))
        return Fp8Weight(codes.view(torch.uint8), scale.to(torch.uint8))

    def fp4(self, experts: int, out: int, inner: int) -> Fp4Weight | Tensor:
        """Stacked packed FP4 weights of ordinary size, or plain in debug numerics."""
        if not self.quantised:
            return self.normal(experts, out, inner, size=inner**-0.5)
        codes = self.integers(0, 256, experts, out, inner // 2).to(torch.uint8)
        near = 127 - round(0.5 * torch.tensor(inner * 9.0).log2().item())
        scale = self.integers(near - 1, near + 2, experts, out, inner // 32)
        return Fp4Weight(codes, scale.to(torch.uint8))

    def stored(self, record: Record, *shape: int) -> Tensor:
        """Random vectors as records [*shape, bytes]."""
        return encode_record(self.normal(*shape, record.width), record)

    def batch(self, spans: Sequence[tuple[int, int]]) -> Batch:
        """A step with one slice (start, count) a request.

        Requests take rows 1, 2, ... and shuffled slots and pages, so that mixing up rows, slots
        and pages shows; row, slot and page 0 stay reserved.
        """
        requests = len(spans)
        longest = max(start + count for start, count in spans)
        pages = -(-longest // PAGE_TOKENS)
        table = 1 + self._shuffled(requests * pages).view(requests, pages)
        counts = torch.tensor([count for _, count in spans], device=self.device)
        starts = torch.tensor([start for start, _ in spans], device=self.device)
        first = counts.cumsum(0) - counts
        each = torch.arange(requests, device=self.device).repeat_interleave(counts)
        token = torch.arange(len(each), device=self.device)
        return Batch(
            positions=starts[each] + token - first[each],
            rows=each + 1,
            starts=starts[each],
            ends=(starts + counts)[each],
            lower=torch.zeros_like(each),
            cached=torch.zeros_like(each),
            slots=torch.cat((each.new_zeros(1), 1 + self._shuffled(requests))),
            page_table=torch.cat((table.new_zeros(1, pages), table)),
            slices=tuple((int(f), int(f + c)) for f, c in zip(first, counts, strict=True)),
            max_len=longest,
        )

    def _shuffled(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._stream, device=self.device)

    def pages(self, batch: Batch, ratio: int) -> PageViews:
        """A page pool for `batch`, seen through the section of the first owner of `ratio`.

        Every entry holds a random record.
        """
        layout = PageLayout.of(self.arch, self.records)
        section = next(owner for owner in layout.owners if owner.ratio == ratio)
        count = int(batch.page_table.max()) + 1
        pool = torch.zeros(count, layout.bytes, dtype=torch.uint8, device=self.device)
        latent, key = self.records.latent, self.records.index_key

        def view(first: int, width: int) -> Tensor:
            part = pool[:, first : first + section.entries * width]
            return part.unflatten(1, (section.entries, width))

        views = PageViews(
            view(section.latents, latent.bytes),
            view(section.key_codes, key.code_bytes),
            view(section.key_scales, key.scale_bytes),
        )
        views.latents[:] = self.stored(latent, count, section.entries)
        keys = self.stored(key, count, section.entries)
        views.key_codes[:] = keys[..., : key.code_bytes]
        views.key_scales[:] = keys[..., key.code_bytes :]
        return views

    def ring(self, batch: Batch) -> Tensor:
        """A window or draft ring of every slot, full of random records."""
        return self.stored(self.records.window, len(batch.slots), self.arch.ring_rows)

    def table(self, batch: Batch, drafts: int) -> Table:
        """Rows of a batch, which know the tokens up to the ends of their slices, with `drafts` at
        hand at most; a few have ended, and a few may grow by one token only."""
        rows = len(batch.slots)
        length = torch.ones(rows, dtype=torch.int64, device=self.device)
        length[batch.rows] = batch.ends
        width, most = batch.max_len + 1 + drafts, self.arch.vocab_size
        ended = self.integers(0, 6, rows) == 0
        ended[0] = True
        return Table(
            tokens=self.integers(0, most, rows, width + drafts),
            length=length,
            limit=length + self.integers(1, drafts + 2, rows),
            slot=batch.slots,
            decoder_start=self.integers(0, 20, rows),
            lower=self.integers(0, 9, rows),
            cached=self.integers(0, 9, rows),
            drafts=self.integers(0, drafts + 1, rows),
            cap=self.integers(0, drafts + 1, rows),
            ended=ended,
            end_id=self.integers(0, most, rows),
            stop_ids=self.integers(-1, most, rows, 3),
            confidence=self.wide(rows, drafts),
            temperature=torch.ones(drafts, dtype=torch.float64, device=self.device),
            budget=torch.tensor([rows * drafts // 2], device=self.device),
        )

    def angles(self, positions: Tensor, *, compressed: bool = False) -> Rotation:
        """Angles of positions, for layers with or without a compressed branch."""
        freqs = layer_frequencies(self.arch)[int(compressed)].to(self.device)
        return rotation(positions, freqs)


def rows_of(case: Mapping[str, Any], per_token: Collection[str], index: Tensor) -> Case:
    """The same call for the tokens `index` [kept] alone; each of them becomes its own slice."""
    return {name: _rows(v, index) if name in per_token else v for name, v in case.items()}


def _rows(value: Any, index: Tensor) -> Any:
    if isinstance(value, Batch):
        kept = {
            name: getattr(value, name)[index]
            for name in ("positions", "rows", "starts", "ends", "lower", "cached")
        }
        slices = tuple((i, i + 1) for i in range(len(index)))
        return Batch(
            **kept,
            slots=value.slots,
            page_table=value.page_table,
            slices=slices,
            max_len=value.max_len,
        )
    if isinstance(value, Tensor):
        return value[index]
    return None if value is None else type(value)(*(_rows(part, index) for part in value))
