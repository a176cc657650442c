"""The kernels of the draft pass against their references, and a row's bits against its company."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from deepinfer.ops.attention_inputs import attention_inputs
from deepinfer.ops.cases import Maker, rows_of
from deepinfer.ops.draft_attention import cases as attention_cases
from deepinfer.ops.draft_attention import draft_attention
from deepinfer.ops.markov_draft import cases as markov_cases
from deepinfer.ops.markov_draft import markov_draft
from deepinfer.ops.noise import Purpose, gumbel_noise
from deepinfer.ops.sample import Drawing, SamplerTable
from deepinfer.ops.sample.cases import admitted
from deepinfer.step import RowSampling
from tests.ops.small import SMALL

pytest.importorskip("triton")
from deepinfer.ops.draft_attention import hopper
from deepinfer.ops.draft_attention import triton as attention
from deepinfer.ops.markov_draft import hopper as markov_hopper
from deepinfer.ops.markov_draft import triton as markov

pytestmark = pytest.mark.gpu
LIKE_THE_RELEASE = replace(
    SMALL, num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, sliding_window=128
)
ANCHORS = [(p, 1) for p in (0, 3, 126, 127, 128, 139, 140, 500, 3000)]


KERNELS = pytest.mark.parametrize("kernel", [attention, hopper], ids=["triton", "hopper"])


def poison(gpu: Any) -> None:
    """NaN bytes in the memory that the next outputs get."""
    torch.full((2**28,), 255, dtype=torch.uint8, device=gpu.device)


def attention_case(gpu: Any, arch: Any, anchors: list[tuple[int, int]]) -> dict[str, Any]:
    make = Maker(arch, device=gpu.device)
    return attention_cases.case(make, make.batch(anchors))


@KERNELS
@pytest.mark.parametrize("arch", [SMALL, LIKE_THE_RELEASE])
@pytest.mark.parametrize("later", [0, 100])
def test_attention_agrees_with_the_reference(gpu, kernel, arch, later):
    case = attention_case(gpu, arch, ANCHORS)
    case["lower"] = (case["anchors"] - later).clamp(min=0) if later else case["lower"]
    poison(gpu)
    found = kernel.draft_attention(**case).double().flatten(2)
    wanted = draft_attention.reference(**case).double().flatten(2)
    errors = (found - wanted).norm(dim=2) / wanted.norm(dim=2)
    assert bool((errors < 5e-3).all()), f"largest relative error of a row {errors.max().item():.2e}"


@KERNELS
def test_attention_sees_nothing_outside_the_window_and_the_block(gpu, kernel):
    case = attention_case(gpu, LIKE_THE_RELEASE, ANCHORS)
    wanted = kernel.draft_attention(**case)
    seen = torch.zeros(case["ring"].shape[:2], dtype=torch.bool, device=gpu.device)
    for slot, anchor in zip(case["slots"].tolist(), case["anchors"].tolist(), strict=True):
        for position in range(max(0, anchor - 127), anchor + 1):
            seen[slot, position % case["ring"].shape[1]] = True
    case["ring"][~seen] = 255  # NaN codes and scales
    assert torch.equal(kernel.draft_attention(**case), wanted)


@KERNELS
def test_scores_of_any_size_stay_finite(gpu, kernel):
    case = attention_case(gpu, LIKE_THE_RELEASE, ANCHORS)
    for size in (1e-4, 1e3):
        scaled = case | {"q": case["q"] * size}
        found = kernel.draft_attention(**scaled)
        assert bool(torch.isfinite(found).all())
        wanted = draft_attention.reference(**scaled).double()
        assert (found.double() - wanted).norm() < 2e-2 * wanted.norm()


@KERNELS
def test_a_block_has_the_same_attention_alone_and_among_63(gpu, kernel):
    case = attention_case(gpu, LIKE_THE_RELEASE, [(40 * row, 1) for row in range(64)])
    by, block = case["by"], case["q"].shape[1]
    whole = kernel.draft_attention(**case)
    for keep in ([0], [31], [5, 63]):
        index = torch.tensor(keep, device=gpu.device)
        angles = (index[:, None] * block + torch.arange(block, device=gpu.device)).flatten()
        part = rows_of(case, attention_cases.PER_TOKEN, index) | {"by": by.rows(angles)}
        for _ in range(5):
            poison(gpu)
            assert torch.equal(kernel.draft_attention(**part), whole[index])


@KERNELS
@pytest.mark.parametrize("arch", [SMALL, LIKE_THE_RELEASE])
def test_the_first_queries_of_a_block_need_no_others(gpu, kernel, arch):
    case = attention_case(gpu, arch, ANCHORS)
    block = case["q"].shape[1]
    whole = kernel.draft_attention(**case)
    for count in (1, 3):
        place = torch.arange(len(ANCHORS) * block, device=gpu.device)
        by = case["by"].rows(place[place % block < count])
        poison(gpu)
        found = kernel.draft_attention(**case | {"q": case["q"][:, :count], "by": by})
        assert torch.equal(found, whole[:, :count])


@pytest.mark.parametrize("arch", [SMALL, LIKE_THE_RELEASE])
def test_how_many_queries_a_program_takes_changes_no_bits(gpu, arch):
    case = attention_case(gpu, arch, ANCHORS)
    whole = hopper.draft_attention(**case)
    del case["record"]
    for each in (1, 2, 3, 5):
        poison(gpu)
        assert torch.equal(hopper.shared(**case, each=each), whole)


def markov_case(gpu: Any, vocab: int, requests: int, seed: int = 0) -> dict[str, Any]:
    make = Maker(replace(SMALL, vocab_size=vocab, hidden_size=1280), device=gpu.device)
    case = markov_cases.case(make, make.batch([(seed + i, 1) for i in range(requests)]))
    return case | {"base": case["base"] * 2}


def drawing(gpu: Any, requests: int, temperatures: tuple[float, ...]) -> Drawing:
    table = SamplerTable(requests + 1, gpu.device)
    for row in range(1, requests + 1):
        temperature = temperatures[row % len(temperatures)]
        table.admit(admitted(row, 3, RowSampling(temperature=temperature))._replace(seed=-row))
    rows = torch.arange(1, requests + 1, device=gpu.device)
    return Drawing(table.state, rows, 3 * rows + 7, Purpose.TARGET, None)


@pytest.mark.parametrize(("vocab", "requests"), [(300, 9), (300, 40), (129_280, 70)])
def test_the_likeliest_drafts_are_those_of_the_reference(gpu, vocab, requests):
    case = markov_case(gpu, vocab, requests)
    poison(gpu)
    found, wanted = markov.markov_draft(**case), markov_draft.reference(**case)
    assert torch.equal(found.tokens, found.logits.argmax(2))
    for place in range(found.tokens.shape[1]):  # a near tie changes all that follows
        before = torch.cat((case["newest"][:, None], found.tokens), dim=1)[:, : place + 1]
        same = (before[:, 1:] == wanted.tokens[:, :place]).all(1)
        assert same.float().mean() > 0.9
        torch.testing.assert_close(
            found.logits[same, place], wanted.logits[same, place], atol=1e-4, rtol=0
        )
        torch.testing.assert_close(
            found.confidence[same, place], wanted.confidence[same, place], atol=1e-3, rtol=1e-4
        )
    short = markov.markov_draft(**case, keep=False)
    assert torch.equal(short.tokens, found.tokens)
    assert torch.equal(short.confidence, found.confidence)
    assert not short.logits.numel()


def test_equal_logits_draft_the_lowest_id_and_broken_ones_some_id(gpu):
    case = markov_case(gpu, 300, 8)
    case["weights"] = case["weights"]._replace(head=torch.zeros_like(case["weights"].head))
    case["base"][:] = 0.0
    case["base"][:, :, [291, 250, 127, 128]] = 3.0
    case["base"][2] = float("nan")
    case["base"][3, 1, 280] = float("inf")
    found = markov.markov_draft(**case).tokens
    assert found[0].tolist() == [127] * 5
    assert found[3].tolist() == [127, 280, 127, 127, 127]
    assert bool(((found >= 0) & (found < 300)).all())


@pytest.mark.parametrize("vocab", [300, 129_280])
def test_drawn_drafts_win_by_the_noise_of_the_sampler(gpu, vocab):
    requests = 40
    case, by = markov_case(gpu, vocab, requests), drawing(gpu, requests, (0.0, 0.3, 1.0, 20.0))
    found = markov.markov_draft(**case, drawing=by)
    state = by.state
    for place in range(found.tokens.shape[1]):
        logits = found.logits[:, place]
        noise = gumbel_noise(state.key(by.rows, by.length + place), by.purpose, vocab)
        drawn = logits / state.temperature[by.rows].unsqueeze(1) + noise
        score = torch.where(state.greedy[by.rows].unsqueeze(1), logits, drawn)
        chosen = score.gather(1, found.tokens[:, place : place + 1]).squeeze(1)
        assert bool((score.amax(1) - chosen < 1e-4 * score.amax(1).abs().clamp(min=1)).all())
    greedy = state.greedy[by.rows]
    assert torch.equal(found.tokens[greedy], markov.markov_draft(**case).tokens[greedy])


def test_whoever_keeps_laws_draws_from_the_same_logits(gpu):
    case, by = markov_case(gpu, 300, 9), drawing(gpu, 9, (0.0, 1.0))
    laws = torch.full((10, 3, 300), 7.0, device=gpu.device)
    found = markov.markov_draft(**case, drawing=by._replace(laws=laws, purpose=Purpose.DRAFT))
    again = laws.clone()
    wanted = by._replace(laws=again, purpose=Purpose.DRAFT)
    choose = wanted(case["base"])
    for place in range(5):
        assert torch.equal(choose(found.logits[:, place], place), found.tokens[:, place])
    assert torch.equal(laws, again)
    assert bool((laws[1:].amax(2) == 0).all())


@pytest.mark.parametrize("temperatures", [(0.0,), (0.0, 1.0)])
def test_a_request_has_the_same_drafts_alone_and_among_63(gpu, temperatures):
    case, by = markov_case(gpu, 129_280, 64), drawing(gpu, 64, temperatures)
    whole = markov.markov_draft(**case, drawing=by)
    for keep in ([0], [31], [2, 40, 63], list(range(20)), list(range(20, 61))):
        index = torch.tensor(keep, device=gpu.device)
        some = rows_of(case, markov_cases.PER_TOKEN, index)
        few = by._replace(rows=by.rows[index], length=by.length[index])
        for _ in range(3):
            poison(gpu)
            part = markov.markov_draft(**some, drawing=few)
            for one, other in zip(part, whole, strict=True):
                assert torch.equal(one, other[index])


def through_tiles(case: dict[str, Any], by: Drawing | None, programs: int) -> Any:
    """Drafts by programs that go through tiles of the vocabulary, for any number of requests."""
    run = partial(markov_hopper.launch_many, programs=programs)
    given = case["base"], case["hidden"], case["newest"], case["weights"], by
    return markov.drafted(*given, False, run)


def release_case(gpu: Any, vocab: int, requests: int) -> dict[str, Any]:
    assert SMALL.draft is not None
    arch = replace(
        SMALL, vocab_size=vocab, hidden_size=1280, draft=replace(SMALL.draft, markov_rank=256)
    )
    make = Maker(arch, device=gpu.device)
    case = markov_cases.case(make, make.batch([(i, 1) for i in range(requests)]))
    return case | {"base": case["base"] * 2}


@pytest.mark.parametrize(("vocab", "requests"), [(300, 5), (300, 70), (129_280, 64)])
@pytest.mark.parametrize("temperatures", [None, (0.0,), (0.0, 0.3, 1.0, 20.0)])
def test_programs_that_go_through_tiles_make_the_same_drafts(gpu, vocab, requests, temperatures):
    case = release_case(gpu, vocab, requests)
    by = None if temperatures is None else drawing(gpu, requests, temperatures)
    wanted = markov.markov_draft(**case, drawing=by, keep=False)
    for programs in (264, 100):
        poison(gpu)
        found = through_tiles(case, by, programs)
        assert torch.equal(found.tokens, wanted.tokens)
        assert torch.equal(found.confidence, wanted.confidence)
    chosen = markov_hopper.markov_draft(**case, drawing=by, keep=False)
    assert torch.equal(chosen.tokens, wanted.tokens)


def test_ties_and_broken_logits_are_settled_alike_in_tiles(gpu):
    case = release_case(gpu, 129_280, 40)
    case["weights"] = case["weights"]._replace(head=torch.zeros_like(case["weights"].head))
    case["base"][:] = 0.0
    case["base"][:, :, [77, 4000, 129_279]] = 3.0
    case["base"][1] = float("nan")
    case["base"][2, 1, 129_278] = float("inf")
    found = through_tiles(case, None, 264).tokens
    assert found[:3].tolist() == [[77] * 5, [0] * 5, [77, 129_278, 77, 77, 77]]
    assert torch.equal(found, markov.markov_draft(**case, keep=False).tokens)


def test_records_are_the_same_without_queries(gpu):
    make = Maker(LIKE_THE_RELEASE, device=gpu.device)
    kv, gain = make.normal(70, 512), make.gains(512)
    by = make.angles(torch.arange(70, device=gpu.device) * 3)
    op = attention_inputs.bind("triton", arch="sm90", quantised=True, heads=64, head_dim=512)
    call = partial(op, eps=1e-6, record=make.records.window)
    alone = call(kv[:, :0], kv, gain, by, heads=0)
    wanted = call(make.normal(70, 64 * 512), kv, gain, by, heads=64)
    assert alone.q.shape == (70, 0, 512)
    assert torch.equal(alone.records, wanted.records)
