"""Every CPU implementation gives the reference's bits: any rows, any company, any thread count."""

import importlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.arch import Record
from deepinfer.model.dummy import DummySource
from deepinfer.model.network import Network
from deepinfer.model.numerics import CHECKPOINT, NOQUANT
from deepinfer.model.operations import OPS, Operations
from deepinfer.model.weights import WeightLoader
from deepinfer.ops import cpu_codes, cpu_tiles
from deepinfer.ops.cases import Maker, rows_of
from deepinfer.ops.formats import (
    Fp8Weight,
    Quantised,
    decode_parts,
    decode_record,
    encode_record,
    quantise_fp8,
)
from deepinfer.ops.index_select import cpu as index_cpu
from deepinfer.ops.index_select.reference import select
from deepinfer.ops.registry import REFERENCE
from deepinfer.ops.sparse_attention import sparse_attention
from deepinfer.runner.assemble import RowSlice
from tests.model.networks import CPU, hash_map, network, new_state, run, tokens, with_engram
from tests.ops.small import SMALL, TWO_STREAMS, same

NAMES = sorted(n for n, op in OPS.items() if any(i.name == "cpu" for i in op.implementations))
# A window and a selection that end inside a block of 64 slots, and blocks that hold both.
LONG_WINDOW = replace(SMALL, sliding_window=80, index_topk=70)
ARCHS = {"small": SMALL, "two streams": TWO_STREAMS, "long window": LONG_WINDOW}
BATCHES = {
    "decode": [(p, 1) for p in (0, 1, 14, 15, 16, 17, 79, 80, 126, 127, 128, 255, 256, 300, 5)],
    "prefill": [(0, 150), (37, 1), (100, 110), (3, 7), (250, 33), (120, 16)],
    "one row": [(131, 1)],
    "verification": [(p, 6) for p in (0, 13, 124, 250)],
}
WEIGHTS = ("weight", "weights", "fn")


def parts(name):
    """The bound CPU implementation of an operation, its reference and its cases."""
    cases = importlib.import_module(f"deepinfer.ops.{name}.cases")
    return OPS[name].bind("cpu", arch="cpu", quantised=True), OPS[name].reference, cases


def packed(bound, case):
    """The case with its weights in the form that the implementation wants."""
    return {k: bound.pack(v) if k in WEIGHTS else v for k, v in case.items()}


@pytest.mark.parametrize("spans", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("arch", ARCHS.values(), ids=ARCHS)
@pytest.mark.parametrize("name", NAMES)
def test_bits_equal_the_reference(name, arch, spans):
    bound, reference, cases = parts(name)
    make = Maker(arch)
    case = cases.case(make, make.batch(spans))
    found = bound(**packed(bound, case))
    assert same(found, reference(**case))  # afterwards: a changed argument would show


@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_rows_equals_the_reference(name):
    bound, reference, cases = parts(name)
    make = Maker(SMALL)
    case = cases.case(make, make.batch([(7 * p % 300, 1) for p in range(33)]))
    ready = packed(bound, case)
    for count in range(1, 34):
        index = torch.randperm(33)[:count]
        found = bound(**rows_of(ready, cases.PER_TOKEN, index))
        assert same(found, reference(**rows_of(case, cases.PER_TOKEN, index))), f"{count} rows"


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


@pytest.mark.parametrize("name", NAMES)
def test_two_threads_give_the_bits_of_one(name):
    bound, _, cases = parts(name)
    make = Maker(LONG_WINDOW)
    ready = packed(bound, cases.case(make, make.batch([(0, 260), (90, 1), (200, 1)])))
    torch.set_num_threads(1)
    expected = bound(**ready)
    torch.set_num_threads(2)
    assert same(bound(**ready), expected)


@pytest.mark.parametrize("name", NAMES)
def test_other_machines_and_debug_numerics_are_refused(name):
    bound, _, _ = parts(name)
    assert bound.implementation.batch_invariant
    assert bound.implementation.order_class == REFERENCE
    for numerics, machine in ((CHECKPOINT, "sm90"), (NOQUANT, "cpu")):
        bound = getattr(Operations.bind(SMALL, numerics, machine), name)
        assert bound.implementation.name != "cpu"


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("spans", BATCHES.values(), ids=BATCHES)
def test_attention_follows_the_lower_bound_and_the_ratio(spans, ratio):
    bound, reference, cases = parts("sparse_attention")
    make = Maker(LONG_WINDOW)
    case = cases.case(make, make.batch(spans), ratio=ratio)
    positions = case["batch"].positions
    for lower in (0, 5, 90, 10_000):
        case["batch"] = case["batch"].with_lower(torch.full_like(positions, lower))
        assert same(bound(**case), reference(**case)), f"{lower=}"


@pytest.mark.parametrize("spans", [[(120, 40)], [(120, 3), (7, 1)]])
def test_attention_never_reads_what_is_hidden(spans):
    bound, reference, cases = parts("sparse_attention")
    make = Maker(SMALL)
    case = cases.case(make, make.batch(spans))
    case["ids"][::2] = -1
    expected = reference(**case)
    seen = torch.zeros(case["ring"].shape[:2], dtype=torch.bool)
    for start, count, slot in zip(*zip(*spans, strict=True), case["batch"].slots[1:], strict=True):
        before = torch.arange(max(0, start - SMALL.sliding_window + 1), start)
        seen[slot, before % SMALL.ring_rows] = count > 0
    case["ring"][~seen] = 255  # NaN codes
    case["pages"].latents[0] = 255
    assert same(bound(**case), expected)


def test_a_damaged_key_spoils_only_the_rows_that_see_it():
    case = parts("sparse_attention")[2].case(make := Maker(SMALL), make.batch([(0, 60)]))
    case["records"][30] = 255
    found = sparse_attention.bind("cpu", arch="cpu", quantised=True)(**case)
    torch.testing.assert_close(
        found, sparse_attention.reference(**case), equal_nan=True, rtol=0, atol=0
    )
    assert bool(found[:30].isfinite().all())
    assert bool(found[30].isnan().any())


@pytest.mark.parametrize(("ratio", "publish"), [(1, True), (1, False), (2, False)])
@pytest.mark.parametrize("spans", BATCHES.values(), ids=BATCHES)
def test_selection_keeps_candidates_and_publishes_them(spans, ratio, publish):
    bound, reference, cases = parts("index_select")
    make = Maker(SMALL)
    case = cases.case(make, make.batch(spans), ratio=ratio, publish=publish)
    if not publish:
        count = -(-(case["batch"].max_len // ratio) // case["rule"].size)
        blocks = make.wide(len(case["batch"].positions), count).argsort(1)
        case["blocks"] = blocks[:, : case["rule"].limit].sort(1).values
        case["blocks"][:, -1] = -1
    assert same(bound(**case), reference(**case))


values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, float("inf"), float("-inf"), 1e-45])


@given(st.lists(st.lists(values, min_size=9, max_size=9), min_size=1, max_size=4), st.data())
def test_ties_and_infinities_select_as_the_reference(rows, data):
    scores = torch.tensor(rows) + 0.0  # the sum over heads starts from zero: never -0
    visible = torch.tensor([data.draw(st.integers(0, 9)) for _ in rows])
    topk = data.draw(st.integers(1, 12))
    expected = select(scores, visible, topk, blocks=None, rule=None, publish=False)
    found = index_cpu._select(scores.clone(), visible, topk, None, None, False)
    assert same(found, expected)


@pytest.mark.parametrize("form", ["fp8_ue8m0_32", "fp4_e4m3_16", "fp4_ue8m0_32"])
def test_every_pair_of_bytes_decodes_as_in_the_formats(form):
    codes = torch.arange(1 << 16).to(torch.uint16).view(torch.uint8).view(-1, 32)
    width = 64 if form.startswith("fp4") else 32
    groups = width // (16 if form == "fp4_e4m3_16" else 32)
    scale = torch.randint(0, 255, (len(codes), groups), dtype=torch.uint8)
    expected = decode_parts(codes, scale, form)
    found = cpu_codes.decode(codes, scale, form)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    record = Record(form, width)
    data = torch.cat((codes, scale), dim=1)[:200].unflatten(0, (4, 50))
    torch.testing.assert_close(
        cpu_codes.decode_records(data, record),
        decode_record(data, record),
        rtol=0,
        atol=0,
        equal_nan=True,
    )


floats = st.floats(-(2.0**127), 2.0**127, width=32) | st.floats(-500, 500, width=32)
powers = st.builds(
    lambda e, s: s * 448.0 * 2.0**e, st.integers(-140, 118), st.sampled_from([1, -1])
)


@settings(max_examples=200)
@given(st.lists(floats | powers, min_size=64, max_size=64), st.booleans())
def test_quantisation_equals_the_formats(numbers, narrow):
    x = torch.tensor(numbers, dtype=torch.float32).view(1, 2, 32).flatten(1)
    x = x.to(torch.bfloat16) if narrow else x
    if bool(x.isfinite().all()):
        assert same(cpu_codes.quantise(x), quantise_fp8(x))


@settings(max_examples=200)
@given(
    st.lists(floats | powers, min_size=64, max_size=64),
    st.sampled_from(["fp8_ue8m0_32", "fp4_e4m3_16", "fp4_ue8m0_32"]),
    st.booleans(),
)
def test_stored_records_equal_the_formats(numbers, form, narrow):
    x = torch.tensor(numbers, dtype=torch.float32).view(2, 32).repeat(1, 2)
    x = x.to(torch.bfloat16) if narrow else x
    if bool(x.isfinite().all()):
        record = Record(form, 64)
        assert same(cpu_codes.encode_record(x, record), encode_record(x, record))


@pytest.mark.parametrize("form", ["fp4_e4m3_16", "fp4_ue8m0_32", "fp8_ue8m0_32"])
def test_every_bf16_number_is_stored_as_in_the_formats(form):
    every = torch.arange(1 << 16).to(torch.uint16).view(torch.bfloat16)
    every = every[every.isfinite()]
    every = torch.nn.functional.pad(every, (0, -len(every) % 15)).view(-1, 15)
    record = Record(form, 32)
    for largest in (0.0, 6.0, 2.0**-9, 1.75, 3.0e38):
        x = torch.nn.functional.pad(every, (0, 1), value=largest).repeat(1, 2)
        assert same(cpu_codes.encode_record(x, record), encode_record(x, record)), largest


def test_a_number_that_is_not_one_stays_visible():
    x = torch.ones(1, 32)
    x[0, 3] = torch.nan
    pair = cpu_codes.quantise(x)
    assert bool(cpu_tiles.wide_input(Quantised(*pair)).isnan().any())


def test_weights_that_bf16_cannot_hold_stay_wide():
    make = Maker(SMALL)
    ordinary = make.fp8(32, 32)
    assert cpu_tiles.hold_fp8(ordinary).dtype == torch.bfloat16
    tiny = Fp8Weight(torch.full((32, 32), 1, dtype=torch.uint8), torch.zeros(1, 1).to(torch.uint8))
    held = cpu_tiles.hold_fp8(tiny)  # 2^-9 * 2^-127
    assert held.dtype == torch.float32
    assert bool((held == 2.0**-136).all())


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 6))
def test_runs_cover_every_token_once_and_join_short_slices(counts, least):
    bounds, first = [], 0
    for count in counts:
        bounds.append((first, first + count))
        first += count
    found = cpu_tiles.runs(bounds, least)
    assert [t for low, high, _ in found for t in range(low, high)] == list(range(first))
    for low, high, long in found:
        inside = [b for b in bounds if low <= b[0] and b[1] <= high]
        assert all((last - start >= least) == long for start, last in inside)
        assert not long or len(inside) == 1


def fast_network():
    """The network of `tests.model.networks`, with the implementations of the CPU."""
    arch = with_engram()
    ops = Operations.bind(arch, CHECKPOINT, "cpu", {"*": REFERENCE} | dict.fromkeys(NAMES, "cpu"))
    weights = WeightLoader(DummySource(arch, 7), arch, ops, CHECKPOINT, CPU).load()
    return Network(arch, CHECKPOINT, ops, weights, hash_map(arch))


def test_a_network_of_them_leaves_the_same_bits_everywhere():
    slow, fast = network(), fast_network()
    states = [new_state(net) for net in (slow, fast)]
    for state in states:
        state.pages.zero_()
        state.slots.zero_()
    a, b, c = (tokens(slow, 120, seed) for seed in (1, 2, 3))
    pages = (3, 5), (2, 7), (1, 4)
    steps = [
        [RowSlice(a, 0, 40, 1, pages[0]), RowSlice(b, 0, 3, 2, pages[1])],
        [RowSlice(a, 40, 1, 1, pages[0]), RowSlice(b, 3, 20, 2, pages[1])],
        [RowSlice(a, 41, 6, 1, pages[0]), RowSlice(b, 23, 1, 2, pages[1])],
        [RowSlice(c, 0, 90, 3, pages[2], 70), RowSlice(a, 47, 1, 1, pages[0])],
        [RowSlice(c, 90, 1, 3, pages[2], 70), RowSlice(b, 24, 1, 2, pages[1])],
    ]
    for slices in steps:
        left, right = (run(n, s, slices) for n, s in zip((slow, fast), states, strict=True))
        assert torch.equal(left.hidden, right.hidden)
        assert same(left.features, right.features)
        assert torch.equal(slow.logits(left.hidden), fast.logits(right.hidden))
        assert torch.equal(states[0].pages[1:], states[1].pages[1:])
        assert torch.equal(states[0].slots[1:], states[1].slots[1:])


def test_debug_numerics_run_on_references_alone():
    ops = Operations.bind(with_engram(), NOQUANT, "cpu")
    assert {getattr(ops, name).implementation.name for name in OPS} == {REFERENCE}
