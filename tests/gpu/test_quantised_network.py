"""The release's formats in whole networks: each operation beside its reference, and the logits.

Quantisers hand the smallest difference on: one unit in the last place of a few results moves logits
as far as another order of sums does. So operations are judged on equal inputs, with the state and
the activations of a network; and logits by how far such a unit moves those of the references.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Arch
from deepinfer.bench.agreement import Agreement, shake
from deepinfer.bench.end_to_end import MINI
from deepinfer.bench.slices import slice_arch
from deepinfer.model.drafter import Drafter
from deepinfer.model.network import Network
from deepinfer.model.operations import OPS
from deepinfer.model.state import State
from deepinfer.runner.assemble import RowSlice
from tests.gpu.networks import build
from tests.model.beside import Findings, beside
from tests.model.networks import hash_map, run

pytestmark = pytest.mark.gpu
LAYERS = {
    **{key: MINI[key] for key in MINI if key.endswith("_ids")},
    "candidate_source_layer_id": MINI["candidate_source_layer_id"],
    "num_hidden_layers": MINI["num_hidden_layers"],
    "compress_ratios": [*MINI["compress_ratios"], 0, 0, 0],
    "engram_num_embeddings": [1],
    "vocab_size": 4096,
    "engram_compressed_vocab_size": 4096,
    "engram_pad_token_id": 2,
    "dspark_target_layer_ids": [3, 5, 7],
    "dspark_noise_token_id": 5,
    "max_position_embeddings": 8192,
}
SIZES: dict[str, dict[str, Any]] = {
    "mini": {**MINI, **LAYERS},
    "release": {**LAYERS, "candidate_topk_blocks": 72},
}
PROMPTS = {"mini": (300, 150, 90, 40), "release": (700, 200, 100)}
STEPS = 3
# Root mean square of the difference over that of the reference, or the share of rows that choose
# otherwise: mean over all layers, prompts and decoding steps, and the largest of one call; about
# twice what an H200 showed. Products add in the FP8 unit, which keeps 13 bits below the largest
# number of a sum. A model of that on a CPU gives, as the device does: `linear_fp8` 4e-4, 2.5 % of
# results one unit in the last place away; of an expert, whose sums are longer, 3.7 %. A few in a
# thousand of the codes made of such results move by a step, which is up to an eighth: hence 2e-3
# and 3e-3 behind the second product of the shared expert and the others.
LIMITS: dict[str, tuple[float, float]] = {
    "mhc_boundary streams": (1e-5, 1e-4),
    "mhc_boundary hidden": (5e-5, 3e-4),
    "mhc_boundary quantised": (1e-4, 2e-3),
    "mhc_boundary": (3e-6, 1e-5),
    "low_rank quantised": (4e-3, 3e-2),
    "low_rank": (1.2e-3, 2.5e-3),
    "linear_fp8": (8e-4, 1.5e-3),
    "attention_inputs": (1e-4, 1e-3),
    "sparse_attention": (4e-3, 5e-3),
    "grouped_output": (8e-4, 2e-3),
    "shared_expert": (5e-3, 1.5e-2),
    "experts": (7e-3, 3e-2),
    "route topk_idx": (1e-3, 0.01),
    "route": (5e-7, 1e-6),
    "engram_gate": (5e-6, 5e-5),
    "compress pairs": (5e-7, 1e-6),
    "compress": (2e-3, 1e-2),  # one FP4 code in 60,000 moves, and a step is a half
    "index_inputs": (1e-4, 1e-3),
    "index_select": (1e-3, 0.01),
    "mhc_collapse": (1e-5, 1e-4),
    "norm_quantise quantised": (1e-4, 2e-3),
    "norm_quantise": (1e-5, 1e-4),
    "head": (1e-5, 2e-5),
    "draft_attention": (4e-3, 5e-3),
    "markov_draft tokens": (0.25, 0.25),
    "markov_draft": (1e-6, 1e-5),
}
BEYOND = {"linear_fp8 result": 1e-3, "low_rank kv": 1e-3}  # model-decisions.md D15


def served(net: Network, prompts: Sequence[list[int]], steps: int) -> Tensor:
    """Logits [rows, vocab] of the prompts, every other one with a compact replay, and of steps.

    Drafts are proposed behind the last step, if the network has stages.
    """
    pages = -(-(max(map(len, prompts)) + steps) // PAGE_TOKENS)
    requests = len(prompts)
    state = State.allocate(
        net.arch, net.records, pages=requests * pages + 1, slots=requests + 1, device=net.device
    )
    state.pages.fill_(255)
    state.slots.fill_(255)
    begin = [max(0, len(p) - 140) * (i % 2) for i, p in enumerate(prompts)]
    drafter = None if net.weights.draft is None else Drafter(net)

    def step(known: Sequence[list[int]], counts: Sequence[int]) -> Tensor:
        forward = run(
            net,
            state,
            [
                RowSlice(
                    ids,
                    len(ids) - count,
                    count,
                    slot=i + 1,
                    pages=tuple(range(1 + pages * i, 1 + pages * (i + 1))),
                    decoder_start=begin[i],
                )
                for i, (ids, count) in enumerate(zip(known, counts, strict=True))
            ],
        )
        if drafter is not None:
            assert forward.features is not None
            drafter.seed(forward.features, forward.batch, state)
        return net.logits(forward.hidden)

    known = [list(p) for p in prompts]
    found = [step(known, [len(p) for p in known])]
    for place in range(steps):
        for i, ids in enumerate(known):
            ids.append(100 + (7 * place + 13 * i) % 400)
        found.append(step(known, [1] * requests))
    if drafter is not None:
        lengths = torch.tensor([len(p) for p in known], device=net.device)
        slots = torch.arange(1, requests + 1, device=net.device)
        lower = torch.tensor(begin, device=net.device)
        drafter.draft(torch.full_like(slots, 77), lengths - 1, slots, lower, state)
    return torch.cat(found)


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    draws = torch.Generator().manual_seed(5)
    return [torch.randint(100, 4000, (n,), generator=draws).tolist() for n in lengths]


def table(findings: Findings) -> str:
    """What was found, one line a part of a result: the mean and the largest over all calls."""
    mean, largest = findings.mean(), findings.largest()
    return "\n".join(
        f"{op:16} {part:12} rms {d.rms:.1e} {largest[op, part].rms:.1e} changed {d.changed:.4f} "
        f"{largest[op, part].changed:.4f} beyond {d.beyond:.1e} {largest[op, part].beyond:.1e}"
        for (op, part), d in mean.items()
    )


class Judged(NamedTuple):
    """A network of references with the device's kernels beside them: sizes, distances, logits."""

    arch: Arch
    prompts: list[list[int]]
    findings: Findings
    wanted: Tensor


@pytest.fixture(scope="module", params=SIZES)
def judged(request, gpu):
    arch = slice_arch("ep64", draft=True, **SIZES[request.param])
    prompts = prompts_of(PROMPTS[request.param])
    net = beside(arch, gpu.device, gpu.arch, hash_map(arch))
    return Judged(arch, prompts, net.findings, served(net, prompts, STEPS))


def test_every_operation_stays_near_its_reference_in_a_network(judged):
    print(table(judged.findings))  # noqa: T201 - shown where the test fails
    assert bool(judged.wanted.isfinite().all())
    assert {op for op, _ in judged.findings.found} == {*OPS}
    mean, largest = judged.findings.mean(), judged.findings.largest()
    far = {}
    for op, part in mean:
        usual, most = LIMITS.get(f"{op} {part}", LIMITS.get(op, (0.0, 0.0)))
        if not (mean[op, part].rms <= usual and largest[op, part].rms <= most):
            far[op, part] = mean[op, part], largest[op, part]
    assert not far
    farther = {key: mean[tuple(key.split())].beyond for key in BEYOND}
    assert all(farther[key] <= BEYOND[key] for key in BEYOND), farther


def away(found: Tensor, wanted: Tensor) -> tuple[Tensor, Agreement]:
    """Median and 90 % of the distance of a row, over the deviation of logits; likeliest tokens."""
    rows = (found - wanted).square().mean(-1).sqrt() / wanted.std()
    other = int((found.argmax(-1) != wanted.argmax(-1)).sum())
    return rows.quantile(rows.new_tensor([0.5, 0.9])), Agreement(len(rows), other)


def test_logits_are_no_farther_than_one_unit_in_the_last_place_moves_them(gpu, judged):
    arch, prompts, wanted = judged.arch, judged.prompts, judged.wanted
    kernels = build(arch, gpu.device, gpu.arch, {})
    far, agree = away(served(kernels, prompts, STEPS), wanted)
    unit = build(arch, gpu.device, gpu.arch, {"*": "reference"})
    shake(unit)
    most, expected = away(served(unit, prompts, STEPS), wanted)
    print(f"{far.tolist()} {agree}, expected {most.tolist()} {expected}")  # noqa: T201
    assert bool((most > 0.01).all()), "the references are not sensitive: compare bits instead"
    assert bool((far < 1.5 * most).all())
    assert agree.no_worse(expected)
