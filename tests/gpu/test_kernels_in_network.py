"""Kernels asked for by name in a whole network: near the reference, the same in any company."""

import pytest
import torch

from deepinfer.arch import Arch, load_arch
from deepinfer.errors import NoImplementation
from deepinfer.model.load import LoadOptions, load_network
from deepinfer.model.network import Network
from deepinfer.model.numerics import CHECKPOINT
from deepinfer.model.operations import OPS, Operations
from deepinfer.model.state import State
from deepinfer.runner.assemble import RowSlice
from tests.golden.compare import Golden
from tests.gpu.networks import build, sized, small
from tests.model.networks import run

pytestmark = pytest.mark.gpu
# What a kernel says to the sizes of golden config d; the others serve it.
REFUSED = {
    "experts": "hidden",
    "grouped_output": r"4 groups of \[32, 1024\]",
    "linear_fp8": r"\[128, 128\] is no multiple",
    "low_rank": r"is no multiple of \[128, 128\]",
    "mhc_boundary": "4 streams of 128",
    "shared_expert": r"\[256, 128\] is no multiple",
}
SERVED = (
    "add_outputs",
    "angles",
    "attention_inputs",
    "compress",
    "draft_attention",
    "embed_streams",
    "engram_gate",
    "engram_rows",
    "engram_values",
    "head",
    "index_inputs",
    "index_select",
    "markov_draft",
    "mhc_collapse",
    "mhc_update",
    "norm_quantise",
    "route",
    "sparse_attention",
    "stream_mean",
    "write_records",
)
KERNELS = {"*": "reference", "experts": "triton", "linear_fp8": "triton", "mhc_boundary": "triton"}


def ids_of(arch: Arch, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 2000, (count,), generator=generator).tolist()


def company(net: Network, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden rows of the first request after a prefill and one decode, with `rows` requests."""
    state = State.allocate(
        net.arch, net.records, pages=rows * 2 + 1, slots=rows + 1, device=net.device
    )
    prompts = [ids_of(net.arch, 40 + i % 7, i) for i in range(rows)]
    pages = [(2 * i + 1, 2 * i + 2) for i in range(rows)]
    slices = [RowSlice(p, 0, len(p), i + 1, pages[i]) for i, p in enumerate(prompts)]
    first = run(net, state, slices).hidden[: len(prompts[0])].clone()
    slices = [RowSlice([*p, 77], len(p), 1, i + 1, pages[i]) for i, p in enumerate(prompts)]
    return first, run(net, state, slices).hidden[0]


@pytest.fixture(scope="module", params=[KERNELS, {"*": "auto"}], ids=["named", "auto"])
def with_kernels(request, gpu):
    return build(small(), gpu.device, gpu.arch, request.param)


def test_a_row_has_the_same_bits_alone_and_among_63(with_kernels):
    alone, crowd = company(with_kernels, 1), company(with_kernels, 64)
    assert torch.equal(alone[0], crowd[0])
    assert torch.equal(alone[1], crowd[1])
    assert torch.equal(with_kernels.logits(alone[1][None]), with_kernels.logits(crowd[1][None]))


def test_the_network_stays_near_its_reference(gpu):
    kernels, reference = (
        build(small(), gpu.device, gpu.arch, ops) for ops in (KERNELS, {"*": "reference"})
    )
    found, wanted = company(kernels, 2)[0].float(), company(reference, 2)[0].float()
    error = (found - wanted).pow(2).mean().sqrt() / wanted.std()
    assert error < 0.3  # random networks amplify one changed code; ops are compared one by one


@pytest.mark.slow
def test_a_rank_of_64_at_true_size_answers(gpu):
    """All 40 layers at the sizes of the release with 6 experts: one rank of a group of 64."""
    arch = sized(n_routed_experts=6, dspark_n_routed_experts=6, engram_compressed_vocab_size=129280)
    net = build(arch, gpu.device, gpu.arch, KERNELS)
    state = State.allocate(arch, net.records, pages=40, slots=10, device=gpu.device)
    prompts = [ids_of(arch, 100 + 30 * i, i) for i in range(8)]
    pages = [tuple(range(4 * i + 1, 4 * i + 5)) for i in range(8)]
    slices = [RowSlice(p, 0, len(p), i + 1, pages[i]) for i, p in enumerate(prompts)]
    hidden = run(net, state, slices).hidden
    assert bool(torch.isfinite(net.logits(hidden[-1:])).all())
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # noqa: TID251
    times = []
    for step in range(4):
        slices = [
            RowSlice([*p, *[9] * (step + 1)], len(p) + step, 1, i + 1, pages[i])
            for i, p in enumerate(prompts)
        ]
        begin.record()
        decoded = run(net, state, slices).hidden
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    print(f"eager decode step of 8 rows, references around three kernels: {times} ms")  # noqa: T201
    again = State.allocate(arch, net.records, pages=40, slots=10, device=gpu.device)
    grown = [*prompts[3], *[9] * 4]
    single = run(net, again, [RowSlice(grown, 0, len(grown), 1, pages[3])]).hidden[-1]
    assert torch.equal(single, decoded[3])


@pytest.fixture(scope="module")
def golden_d(golden_dir):
    return Golden(golden_dir / "config-d")


@pytest.mark.golden
def test_kernels_refuse_sizes_of_golden_config_d_by_name_and_with_a_reason(golden_d, gpu):
    arch = load_arch(golden_d.folder / "checkpoint")
    having = {
        name for name, op in OPS.items() if any(i.name == "triton" for i in op.implementations)
    }
    assert having == {*SERVED, *REFUSED}
    Operations.bind(
        arch, CHECKPOINT, gpu.arch, {"*": "reference"} | dict.fromkeys(SERVED, "triton")
    )
    for name, reason in REFUSED.items():
        with pytest.raises(NoImplementation, match=f"triton: .*{reason}"):
            Operations.bind(arch, CHECKPOINT, gpu.arch, {"*": "reference", name: "triton"})


@pytest.fixture(scope="module")
def golden_net(golden_d, gpu):
    """Golden config d with every kernel that serves its sizes."""
    wishes = {"*": "reference"} | dict.fromkeys(SERVED, "triton")
    folder = golden_d.folder / "checkpoint"
    net = load_network(folder, gpu.device, gpu.arch, LoadOptions(ops=wishes))
    named = {name for name in OPS if getattr(net.ops, name).implementation.name == "triton"}
    assert named == {*SERVED}
    return net


@pytest.mark.golden
@pytest.mark.parametrize("sequence", ["s0", "s1", "s2"])
def test_golden_config_d_with_kernels_asked_for_by_name(golden_d, golden_net, gpu, sequence):
    """Prompt and stored continuation, within the statistics that the data state."""
    net, rule = golden_net, "primary_end_to_end"
    ids = golden_d.tensor("prefill", f"{sequence}.input_ids").tolist()
    pages = tuple(range(1, 20))
    state = State.allocate(net.arch, net.records, pages=20, slots=2, device=gpu.device)
    hidden = run(net, state, [RowSlice(ids, 0, len(ids), 1, pages)]).hidden
    logits = net.logits(hidden)
    rows = golden_d.tensor("prefill", f"{sequence}.rows").long()
    golden_d.check("prefill", f"{sequence}.logits", logits[rows.to(gpu.device)], rule)
    golden_d.check("prefill", f"{sequence}.top1", logits.argmax(-1), rule)
    known, steps = list(ids), []
    for token in golden_d.tensor("decode", f"{sequence}.tokens").tolist():
        known.append(token)
        step = RowSlice(known, len(known) - 1, 1, 1, pages)
        steps.append(net.logits(run(net, state, [step]).hidden))
    golden_d.check("decode", f"{sequence}.logits", torch.cat(steps), rule)
