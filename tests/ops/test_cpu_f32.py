"""The class "cpu_f32": bits of a row never depend on company, place, chunks or threads.

And its results are as close to the reference as sums in fp32 and roundings to bf16 allow.
"""

import importlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.model.dummy import DummySource
from deepinfer.model.network import Network
from deepinfer.model.numerics import CHECKPOINT, NOQUANT
from deepinfer.model.operations import OPS, Operations
from deepinfer.model.weights import WeightLoader
from deepinfer.ops.batch import store_ring
from deepinfer.ops.cases import Maker, rows_of
from deepinfer.ops.cpu_rows import TILE, product
from deepinfer.ops.formats import Quantised, decode_parts, decode_record
from deepinfer.ops.index_select.cpu import choose
from deepinfer.ops.index_select.reference import head_scores
from deepinfer.ops.registry import REFERENCE
from deepinfer.runner.assemble import RowSlice
from tests.model.networks import CPU, hash_map, network, new_state, run, tokens, with_engram
from tests.ops.small import SMALL, TWO_STREAMS, same
from tests.ops.test_compress import feed

CLASS = "cpu_f32"
NAMES = sorted(n for n, op in OPS.items() if any(i.name == CLASS for i in op.implementations))
LONG_WINDOW = replace(SMALL, sliding_window=80, index_topk=70)
ARCHS = {"small": SMALL, "two streams": TWO_STREAMS, "long window": LONG_WINDOW}
BATCHES = {
    "decode": [(p, 1) for p in (0, 1, 14, 15, 16, 17, 79, 80, 126, 127, 128, 255, 256, 300, 5)],
    "prefill": [(0, 150), (37, 1), (100, 110), (3, 7), (250, 33), (120, 16)],
    "one row": [(131, 1)],
    "verification": [(p, 6) for p in (0, 13, 124, 250)],
}
WEIGHTS = ("weight", "weights", "fn")
BF16 = 2.0**-7  # twice the distance of neighbouring bf16 numbers, relative


def parts(name):
    """The bound implementation of an operation, its reference and its cases."""
    cases = importlib.import_module(f"deepinfer.ops.{name}.cases")
    return OPS[name].bind(arch="cpu", quantised=True), OPS[name].reference, cases


def packed(bound, case):
    """The case with its weights in the form that the implementation wants."""
    return {k: bound.pack(v) if k in WEIGHTS else v for k, v in case.items()}


def take(value, index):
    if isinstance(value, torch.Tensor):
        return value[index]
    return None if value is None else type(value)(*(take(part, index) for part in value))


def tensors(value):
    """All tensors of a result; an FP8 pair counts as what it decodes to."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Quantised):
        return [decode_parts(value.codes, value.scale, "fp8_ue8m0_32")]
    return [] if value is None else [t for part in value for t in tensors(part)]


def test_these_operations_have_it_and_prefer_it():
    assert set(NAMES) >= {"experts", "grouped_output", "head", "linear_fp8", "sparse_attention"}
    for name in NAMES:
        bound = getattr(Operations.bind(SMALL, CHECKPOINT, "cpu"), name)
        assert (bound.implementation.name, bound.implementation.order_class) == (CLASS, CLASS)
        assert bound.implementation.batch_invariant
        for numerics, machine in ((CHECKPOINT, "sm90"), (NOQUANT, "cpu")):
            bound = getattr(Operations.bind(SMALL, numerics, machine), name)
            assert bound.implementation.name != CLASS


@pytest.mark.parametrize("spans", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("index_select", "compress")])
def test_results_are_close_to_the_reference(name, arch, spans):
    bound, reference, cases = parts(name)
    make = Maker(arch)
    case = cases.case(make, make.batch(spans))
    found, expected = tensors(bound(**packed(bound, case))), tensors(reference(**case))
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        size = right.float().abs().mean()
        torch.testing.assert_close(
            left.float(), right.float(), rtol=BF16, atol=float(size) * 2.0**-5
        )
        error = (left.float() - right.float()).abs().mean() / size
        assert error < 2.0**-10, f"mean error {error:.2e}"


@pytest.mark.parametrize("arch", [SMALL, TWO_STREAMS], ids=["small", "two streams"])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "compress"])
def test_any_rows_in_any_company_have_the_bits_they_have_alone(name, arch):
    bound, _, cases = parts(name)
    make = Maker(arch)
    case = packed(bound, cases.case(make, make.batch([(7 * p % 300, 1) for p in range(40)])))
    alone = [bound(**rows_of(case, cases.PER_TOKEN, torch.tensor([i]))) for i in range(40)]
    for count in range(1, 41):
        index = torch.randperm(40)[:count]
        found = bound(**rows_of(case, cases.PER_TOKEN, index))
        for place, row in enumerate(index.tolist()):
            assert same(take(found, [place]), alone[row]), f"row {row} at {place} of {count}"


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in ("index_select", "sparse_attention", "compress")]
)
def test_no_rows_give_no_rows(name):
    bound, reference, cases = parts(name)
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(3, 1)]))
    none = torch.zeros(0, dtype=torch.int64)
    found = bound(**rows_of(packed(bound, case), cases.PER_TOKEN, none))
    assert same(found, reference(**rows_of(case, cases.PER_TOKEN, none)))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "compress"])
def test_two_threads_give_the_bits_of_one(name):
    bound, _, cases = parts(name)
    for spans in ([(0, 260), (90, 1), (200, 1)], [(40, 1)], [(p, 1) for p in range(17)]):
        make = Maker(LONG_WINDOW)
        ready = packed(bound, cases.case(make, make.batch(spans)))
        torch.set_num_threads(1)
        expected = bound(**ready)
        torch.set_num_threads(2)
        assert same(bound(**ready), expected)


def cancelling(rows, inner, out, dtype):
    """Factors whose exact products are all zero: what a sum leaves is nothing but its order."""
    half = inner // 2
    x = torch.randn(rows, half) * torch.randn(rows, half).exp()
    w, order = torch.randn(out, half), torch.randperm(half)
    x, w = x.to(torch.bfloat16), w.to(torch.bfloat16)
    return (
        torch.cat((x, -x[:, order]), dim=1).to(dtype),
        torch.cat((w, w[:, order]), dim=1).to(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("inner", "out"),
    [(64, 32), (256, 64), (64, 4096), (1024, 32), (1024, 24), (256, 256), (96, 100), (5120, 48)],
)
def test_the_order_of_a_rows_sums_does_not_depend_on_its_company(inner, out, dtype):
    x, weight = cancelling(150, inner, out, dtype)
    torch.set_num_threads(1)
    alone = torch.cat([product(row, weight) for row in x.split(1)])
    assert bool(alone.any())  # sums that cancel leave noise, so another order would show
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for count in (*range(1, 2 * TILE + 2), 47, 48, 49, 64, 65, 100, 128, 150):
            assert torch.equal(product(x[:count], weight), alone[:count]), f"{count} rows"
        for place in range(TILE):
            rows = torch.roll(x[:TILE], place, 0)
            expected = torch.roll(alone[:TILE], place, 0)
            assert torch.equal(product(rows, weight), expected), f"place {place}"


@settings(max_examples=30)
@given(st.integers(1, 40), st.sampled_from([32, 96, 256]), st.integers(1, 70), st.integers(0, 99))
def test_products_are_as_good_as_fp32_sums_can_be(rows, inner, out, seed):
    torch.manual_seed(seed)
    x = (torch.randn(rows, inner) * torch.randn(rows, inner).exp()).to(torch.bfloat16)
    weight = (torch.randn(out, inner) * torch.randn(out, inner).exp()).to(torch.bfloat16)
    exact = x.double() @ weight.double().mT
    bound = inner * 2.0**-24 * (x.double().abs() @ weight.double().abs().mT)
    wide = product(x, weight.to(torch.float32)).double()
    assert bool(((wide - exact).abs() <= bound).all())
    narrow = product(x, weight).double()
    assert bool(((narrow - exact).abs() <= bound + exact.abs() * 2.0**-8).all())


def test_an_empty_step_gives_no_rows():
    assert product(torch.zeros(0, 32), torch.zeros(16, 32)).shape == (0, 16)


@pytest.mark.parametrize(("start", "count"), [(0, 40), (5, 30), (120, 37), (126, 6), (255, 60)])
@pytest.mark.parametrize("arch", [SMALL, LONG_WINDOW], ids=["small", "long window"])
@pytest.mark.parametrize("ratio", [0, 1, 2])
def test_attention_of_a_slice_equals_attention_token_by_token(arch, ratio, start, count):
    bound, _, cases = parts("sparse_attention")
    make = Maker(arch)
    case = cases.case(make, make.batch([(3, 1), (start, count), (9, 2)]), ratio=ratio)
    for lower in (0, start + 2):
        batch = case["batch"].with_lower(torch.full_like(case["batch"].positions, lower))
        whole = bound(**case | {"batch": batch})
        step = case | {"batch": batch, "ring": case["ring"].clone()}
        for token in range(1, 1 + count):
            one = rows_of(step, cases.PER_TOKEN, torch.tensor([token]))
            here = replace(
                one["batch"], starts=one["batch"].positions, ends=one["batch"].positions + 1
            )
            assert torch.equal(bound(**one | {"batch": here})[0], whole[token]), f"{token=}"
            store_ring(step["ring"], here, one["records"])


@pytest.mark.parametrize("spans", [[(120, 40)], [(120, 3), (7, 1)]])
def test_attention_never_reads_what_is_hidden(spans):
    bound, _, cases = parts("sparse_attention")
    make = Maker(SMALL)
    case = cases.case(make, make.batch(spans))
    case["ids"][::2] = -1
    expected = bound(**case)
    seen = torch.zeros(case["ring"].shape[:2], dtype=torch.bool)
    for start, count, slot in zip(*zip(*spans, strict=True), case["batch"].slots[1:], strict=True):
        before = torch.arange(max(0, start - SMALL.sliding_window + 1), start)
        seen[slot, before % SMALL.ring_rows] = count > 0
    case["ring"][~seen] = 255  # NaN codes
    case["pages"].latents[0] = 255
    assert same(bound(**case), expected)


def test_a_damaged_key_spoils_only_the_rows_that_see_it():
    bound, _, cases = parts("sparse_attention")
    case = cases.case(make := Maker(SMALL), make.batch([(0, 60)]))
    expected = bound(**case)
    for damage in (255, 127):  # both E4M3 codes that are no number
        case["records"][30] = damage
        found = bound(**case)
        assert torch.equal(found[:30], expected[:30])
        assert bool(found[30 : 30 + SMALL.sliding_window].isnan().flatten(1).any(1).all())
        assert torch.equal(found[30 + SMALL.sliding_window :], expected[46:])


@pytest.mark.parametrize(("ratio", "publish"), [(1, True), (1, False), (2, False)])
@pytest.mark.parametrize("spans", BATCHES.values(), ids=BATCHES)
def test_selected_entries_are_among_the_best(spans, ratio, publish):
    bound, _, cases = parts("index_select")
    make = Maker(SMALL)
    case = cases.case(make, make.batch(spans), ratio=ratio, publish=publish)
    found = bound(**case)
    batch, pages, record = case["batch"], case["pages"], case["record"]
    for token, (position, row) in enumerate(zip(batch.positions, batch.rows, strict=True)):
        visible = int(position + 1) // ratio
        table = batch.page_table[row]
        keys = decode_parts(
            pages.key_codes[table].flatten(0, 1),
            pages.key_scales[table].flatten(0, 1),
            record.format,
        )
        query = decode_record(case["queries"].records[token : token + 1], record)
        scores = head_scores(query, case["queries"].weights[token : token + 1], keys[:visible])[0]
        ids = found.ids[token][found.ids[token] >= 0]
        assert len(ids) == min(visible, case["topk"])
        assert ids.tolist() == sorted(set(ids.tolist()))
        if len(ids):
            least = scores.topk(len(ids)).values[-1]
            assert bool((scores[ids] >= least - 1e-5 * scores.abs().max()).all())


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize(("start", "count"), [(0, 60), (100, 110), (250, 9)])
def test_selection_of_a_slice_equals_selection_token_by_token(ratio, start, count):
    bound, _, cases = parts("index_select")
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(3, 1), (start, count), (300, 1)]), ratio=ratio)
    whole = bound(**case)
    for token in range(1, 1 + count):
        one = rows_of(case, cases.PER_TOKEN, torch.tensor([token]))
        assert same(bound(**one), take(whole, [token]))


def test_float64_selection_is_the_references():
    bound, reference, cases = parts("index_select")
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(0, 150), (37, 1)]))
    found = choose(
        case["queries"], case["batch"], case["pages"], case["blocks"], case["topk"], case["rule"],
        case["publish"], case["record"], torch.float64,
    )  # fmt: skip
    assert same(found, reference(**case))


@settings(max_examples=12)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.sampled_from([1, 2]), st.booleans())
def test_a_compressor_stores_the_same_bytes_in_any_chunks(counts, ratio, threads):
    bound, reference, cases = parts("compress")
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(0, sum(counts))]), ratio=ratio)
    ready = packed(bound, case)
    torch.set_num_threads(1)
    expected = feed(ready, [sum(counts)], bound)
    torch.set_num_threads(1 + threads)
    found = feed(ready, counts, bound)
    assert same(take(found["pages"], slice(1, None)), take(expected["pages"], slice(1, None)))
    if ratio == 2:
        last = (sum(counts) - 1) % SMALL.pair_rows
        assert torch.equal(found["pairs"][1:, last], expected["pairs"][1:, last])
    slow = feed(case, [sum(counts)], reference)
    left, right = (
        decode_record(s["pages"].latents[1:], make.records.latent) for s in (found, slow)
    )
    assert (left - right).norm() <= 0.02 * right.norm()  # a few FP4 codes flip


def test_a_compressor_leaves_cached_entries_alone():
    bound, _, cases = parts("compress")
    make = Maker(SMALL)
    case = packed(bound, cases.case(make, make.batch([(0, 40)]), ratio=2))
    batch = replace(case["batch"], cached=torch.full_like(case["batch"].positions, 30))
    before = [view.clone() for view in case["pages"]]
    bound(**case | {"batch": batch})
    page = int(batch.page_table[1, 0])
    for view, old in zip(case["pages"], before, strict=True):
        assert torch.equal(view[page, :15], old[page, :15])
        assert not torch.equal(view[page, 15:20], old[page, 15:20])
        assert torch.equal(view[page, 20:], old[page, 20:])


def fast_network():
    """The network of `tests.model.networks`, with what a CPU runs by default."""
    arch = with_engram()
    ops = Operations.bind(arch, CHECKPOINT, "cpu")
    weights = WeightLoader(DummySource(arch, 7), arch, ops, CHECKPOINT, CPU).load()
    return Network(arch, CHECKPOINT, ops, weights, hash_map(arch))


def test_a_network_leaves_the_same_bits_in_any_chunks_company_and_threads():
    net = fast_network()
    ids, other = tokens(net, 150, 1), tokens(net, 150, 2)
    plans = [
        ([150], 1),
        ([64] + [1] * 40 + [46], 1),
        ([7] * 21 + [3], 1),
        ([64, 64, 1, 1, 20], 2),
        ([100, 1, 1, 1, 6, 6, 35], 1),
    ]
    results = []
    for sizes, threads in plans:
        torch.set_num_threads(threads)
        state, done, hidden = new_state(net), 0, []
        for turn, size in enumerate(sizes):
            slices = [RowSlice(ids, done, size, 1, (3, 5))]
            if turn % 7 < 5:  # company on the left that goes its own way
                slices.insert(0, RowSlice(other, 3 * turn, 3, 2, (2, 7)))
            hidden.append(run(net, state, slices).hidden[-size:])
            done += size
        logits = net.logits(torch.cat(hidden))
        results.append((logits, state.slots[1].clone(), state.pages[[3, 5]].clone()))
    for found in results[1:]:
        for left, right in zip(found, results[0], strict=True):
            assert torch.equal(left, right)


def test_a_networks_logits_stay_near_the_references():
    slow, fast = network(), fast_network()
    ids = tokens(slow, 90, 3)
    slices = [RowSlice(ids, 0, 90, 1, (3, 5))]
    left, right = (net.logits(run(net, new_state(net), slices).hidden) for net in (slow, fast))
    # Last bits flip FP8 and FP4 codes here and there, as between any two orders of sums.
    error = (left - right).norm(dim=1) / left.norm(dim=1)
    assert float(error.median()) < 0.03, f"median {error.median():.1e}, most {error.max():.1e}"


def test_debug_numerics_run_on_references_alone():
    ops = Operations.bind(with_engram(), NOQUANT, "cpu")
    assert {getattr(ops, name).implementation.name for name in OPS} == {REFERENCE}
