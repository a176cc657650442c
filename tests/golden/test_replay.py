"""Bounded decoder replay: only the last prompt rows run the decoder layers.

Rows may be removed physically ("compact") or left in place behind a bound ("mask"): the same
numbers. A continuation of the same prompt may be stored in two lengths; the shorter is a prefix.
"""

import pytest
import torch

from tests.golden.replays import KEEPS, SEQUENCES, noquant_places, primary_places

pytestmark = pytest.mark.golden

CASES = [(c, s, keep) for c in "abd" for s in SEQUENCES for keep in KEEPS[c]]
TAIL = 4  # prompt rows whose logits are stored


def outputs(run):
    """What the files of a replay may hold."""
    return {
        "tail_logits": run.logits[-TAIL:],
        "logits": torch.stack(run.step_logits),
        "margin": run.margins,
        "draft_tokens": run.draft_tokens,
        "confidence": run.confidence,
        "draft_logits": run.draft_logits,
        "ring_after_prefill": run.draft_rings,
        "main_hidden": run.features,
    }


def check(golden, places, values, condition):
    """Judge every stored tensor; returns how many there were."""
    count = 0
    for file, stem in places:
        for name, value in values.items():
            key = (file, f"{stem}.{name}")
            if key in golden and condition in golden.conditions(*key):
                rows = golden.tensor(*key).shape[0]
                wanted = value[-rows:] if name == "main_hidden" else value[:rows]
                golden.check(*key, wanted, condition)
                count += 1
    return count


def stored_drafts(golden, places):
    """Where the draft tokens of a replay are."""
    keys = [(file, f"{stem}.draft_tokens") for file, stem in places]
    return next(key for key in keys if key in golden)


@pytest.fixture(params=CASES, ids=["-".join(map(str, case)) for case in CASES])
def case(request):
    return request.param


@pytest.mark.parametrize("compact", [True, False], ids=["compact", "mask"])
def test_without_quantisers(case, compact, runs):
    config, sequence, keep = case
    if config == "d" and sequence == "s2" and not compact:
        pytest.skip("the mask form of d is run on the shorter prompt")
    run = runs.noquant(config, sequence, keep, compact=compact)
    values = {**outputs(run), "tokens": torch.tensor(run.tokens)}
    places = noquant_places(config, sequence, keep)
    assert check(runs.golden(config), places, values, "noquant") >= 3


def test_with_quantisers(case, runs):
    config, sequence, keep = case
    run = runs.primary(config, sequence, keep)
    greedy = torch.stack([run.logits[-1], *run.step_logits[:-1]]).argmax(-1)
    values = {**outputs(run), "tokens": greedy}
    places = primary_places(sequence, keep)
    drafts = runs.golden(config).tensor(*stored_drafts(runs.golden(config), places))
    values["draft_logits"] = run.draft_logits_after(drafts)
    assert check(runs.golden(config), places, values, "primary_end_to_end") >= 4


@pytest.mark.parametrize("config", list("abd"))
@pytest.mark.parametrize("numerics", ["noquant", "primary"])
def test_removing_rows_equals_masking_them(config, numerics, runs):
    keep = KEEPS[config][0]
    compact, mask = (
        getattr(runs, numerics)(config, "s1", keep, compact=compact) for compact in (True, False)
    )
    for name, value in outputs(compact).items():
        assert (value == outputs(mask)[name]).all(), name
    assert compact.tokens == mask.tokens


@pytest.mark.parametrize("config", list("abd"))
def test_the_bound_is_seen(config, runs):
    """Replay is an approximation: it must differ from the full prefill, or nothing was cut."""
    full, cut = runs.noquant(config, "s2"), runs.noquant(config, "s2", KEEPS[config][0])
    gap = (full.logits[-TAIL:] - cut.logits[-TAIL:]).square().mean().sqrt()
    assert gap / full.logits[-TAIL:].std() > 1e-3
