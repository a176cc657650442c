"""The memory plan: pages, slots, tables and a step fit together, by arithmetic alone."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.arch import PAGE_TOKENS, PageLayout, SlotLayout
from deepinfer.bench.slices import slice_arch
from deepinfer.engine import memory
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.workspace import StepSize, step_bytes, table_bytes
from deepinfer.errors import ConfigError
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.ops.index_select import scratch as index
from deepinfer.ops.registry import Bound
from deepinfer.ops.sparse_attention import scratch as attention
from tests.engine.engines import LIMITS
from tests.model.networks import network

GB = 10**9
RELEASE = slice_arch("ep64", draft=True)
RECORDS = CHECKPOINT.records(RELEASE)


def kernels() -> Operations:
    """Every operation by its last implementation, which on a GPU is a kernel, without binding."""
    return Operations(
        **{
            name: Bound(name, OPS[name].implementations[-1], "for its memory")
            for name in Operations.__dataclass_fields__
        }
    )


def needs(tokens: int, samples: int = 1, proposed: int = 0, longest: int = 8192) -> int:
    size = StepSize(tokens, samples, proposed, longest)
    return step_bytes(RELEASE, RECORDS, kernels(), size)


def test_decoded_keys_of_long_slices_are_counted_up_to_their_bound():
    def keys(tokens: int, longest: int) -> int:
        return attention.workspace(arch=RELEASE, tokens=tokens, longest=longest)

    assert keys(4096, 1 << 20) == 2 * RELEASE.head_dim * (1 << 18) == 268_435_456
    rows = RELEASE.ring_rows + 4096 + 8192 + attention.SLOTS
    assert keys(4096, 8192) == max(2 * 512 * rows, 1024 * (640 * 136 + 10 * 64 * 36))
    for tokens in (128, 4096, 65536):
        for entries in (0, 100, 10**4, 10**5, 10**6):
            found = attention.decoded_rows(tokens, 512, RELEASE.ring_rows, entries)
            assert 2 * 512 * found <= keys(tokens, entries)


@given(st.integers(1, 20_000), st.integers(1, 1 << 20))
def test_scores_of_the_indexer_are_counted_by_chunks(tokens, longest):
    found = index.workspace(arch=RELEASE, tokens=tokens, longest=longest)
    entries = -(-longest // PAGE_TOKENS) * PAGE_TOKENS
    chunk = min(tokens, max(1, index.SCORE_BYTES // (4 * entries)))
    assert 4 * chunk * entries <= index.SCORE_BYTES
    assert found >= 4 * chunk * entries + 8 * tokens * (512 + 2048)
    assert found <= 2 * index.SCORE_BYTES + chunk * 2**17 + tokens * 2**16


def test_a_step_of_the_release_takes_what_its_largest_tensors_take_and_not_much_more():
    # 41 KB of streams a token three times, 61 KB of experts' outputs, 31 KB of what they and the
    # shared expert read, 20 KB of their sum; 129,280 logits of 4 bytes a sample, twice.
    assert 8192 * 250_000 < needs(8192, 256) < 8192 * 700_000 + 256 * 8 * 129_280 + 2 * GB
    assert needs(8192, 1536) - needs(8192, 256) == 1280 * 129_280 * 4
    assert needs(0, 256) >= 256 * 129_280 * 4 + (1 << 24) * 64
    assert needs(512, 256, 2000) > needs(512, 256)


@given(*(st.integers(0, 9000) for _ in range(4)), st.sampled_from(range(4)))
def test_more_of_anything_never_needs_less(tokens, samples, proposed, longest, place):
    sizes = [tokens, samples, proposed, longest + 1]
    more = [size + 100 * (i == place) for i, size in enumerate(sizes)]
    assert needs(*more) >= needs(*sizes)


@given(
    st.integers(1, 200),
    st.integers(50, 200),
    st.floats(0.1, 1.0),
    st.sampled_from([256, 2048, 8192, 32768]),
    st.sampled_from([1, 16, 256]),
    st.sampled_from([0, 3, 5]),
)
def test_pages_leave_room_for_a_step_and_what_was_to_be_left(free, total, share, tokens, seqs, k):
    options = EngineOptions(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(tokens, seqs),
        max_model_len=4096,
        gpu_memory_utilization=share,
        speculative_config={"method": "dspark", "num_speculative_tokens": k} if k else None,
    )
    step = lambda size: step_bytes(RELEASE, RECORDS, kernels(), size)  # noqa: E731
    most = StepSize(max(tokens, seqs), min(max(tokens, seqs), seqs * (1 + k)), seqs * (k > 0), 4096)
    spared = step(most) + table_bytes(seqs + 5, 4096, 32)
    left = free * GB - max(spared, int(total * GB * (1 - share)))
    page, slot = (kind.of(RELEASE, RECORDS).bytes for kind in (PageLayout, SlotLayout))
    if left < 34 * page + (seqs + 5) * slot:  # not even one request fits, or nearly so
        return
    plan = memory.plan_memory(RELEASE, RECORDS, options, free * GB, total * GB, step=step)
    assert plan.total_bytes + plan.table_bytes + plan.step_bytes <= free * GB
    assert free * GB - plan.total_bytes >= int(total * GB * (1 - share))
    assert plan.free_bytes == free * GB - plan.total_bytes
    assert plan.step_bytes == step(most)
    assert any(f"at most {plan.step_bytes / 1e9:.2f} GB" in line for line in plan.lines())


def test_what_does_not_fit_is_said_with_its_numbers_and_remedies():
    with pytest.raises(
        ConfigError,
        match=r"0 B of cache memory .* and 100,\d{3},\d{3},\d{3} B for a step and tables of rows; "
        "raise kv_cache_memory_bytes, or lower max_model_len, max_num_seqs or max_num_batched",
    ):
        memory.plan_memory(
            RELEASE, RECORDS, EngineOptions(max_model_len=4096), 90 * GB, 141 * GB,
            step=lambda _size: 100 * GB,
        )  # fmt: skip


def test_a_cpu_has_the_pages_that_it_had_and_an_amount_that_was_asked_for_is_kept():
    options = EngineOptions(max_model_len=4096, max_num_seqs=16)
    arch, records = network().arch, network().records
    huge = lambda _size: 1 << 50  # noqa: E731
    options = dataclasses.replace(options, max_model_len=LIMITS.max_model_len)
    plain = memory.plan_memory(arch, records, options, 4 * GB, None)
    assert memory.plan_memory(arch, records, options, 4 * GB, None, step=huge) == plain
    assert plain.step_bytes == 0
    options = dataclasses.replace(options, kv_cache_memory_bytes=1 << 28)
    given_ = memory.plan_memory(arch, records, options, 4 * GB, 5 * GB, step=lambda _: 7)
    assert given_.limits == memory.plan_memory(arch, records, options, None, None).limits
    assert given_.step_bytes == 7


def test_tables_of_rows_hold_all_tokens_and_pages():
    assert table_bytes(261, 1 << 20, 8192) == 261 * ((1 << 20) + 8192) * 8
