"""Nothing in a golden manifest is left out: every tensor is judged, an input, or informative."""

import pytest
import torch
from tokenizers import Tokenizer

from deepinfer.model.engram_map import EngramMap

pytestmark = pytest.mark.golden

MODULES = {
    "test_end_to_end.py",
    "test_free_traces.py",
    "test_layers.py",
    "test_noquant.py",
    "test_replay.py",
    "test_rows_d.py",
}


@pytest.mark.parametrize("config", list("abd"))
def test_engram_constants_follow_from_the_tokenizer_and_the_configuration(config, runs):
    model = runs.model(config, "noquant")
    tokenizer = Tokenizer.from_file(str(model.golden.folder / "checkpoint" / "tokenizer.json"))
    found = EngramMap.build(model.arch.engram, tokenizer, model.arch.vocab_size)
    for name, value in (
        ("token_map", found.classes),
        ("primes", found.primes),
        ("offsets", found.offsets),
        ("multipliers", found.multipliers),
    ):
        model.golden.check("engram_map", name, torch.from_numpy(value), "always")


@pytest.mark.parametrize("config", list("abd"))
def test_no_output_tensor_is_left_out(config, runs, request):
    collected = {item.path.name for item in request.session.items}
    if not collected >= MODULES or request.config.getoption("keyword"):
        pytest.skip("only meaningful behind the whole golden suite")
    golden = runs.golden(config)
    assert sorted(set(golden.outputs()) - golden.checked) == []
