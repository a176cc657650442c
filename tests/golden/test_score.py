"""`deepinfer score` on golden prompts: the log-probabilities that follow from the stored logits."""

import json

import pytest
import torch
from safetensors.torch import load_file

from deepinfer.cli import main

pytestmark = pytest.mark.golden


def scored(directory, sequence, numerics, capsys, tmp_path):
    ids = load_file(directory / "prefill.safetensors")[f"{sequence}.input_ids"].tolist()
    source = tmp_path / "prompts.jsonl"
    source.write_text(json.dumps({"prompt_token_ids": ids}))
    checkpoint = str(directory / "checkpoint")
    assert (
        main(["score", "--model", checkpoint, "--input", str(source), "--numerics", numerics]) == 0
    )
    record = json.loads(capsys.readouterr().out)
    assert record["prompt_token_ids"] == ids
    return torch.tensor(ids), torch.tensor(record["logprobs"])


def stored(directory, sequence, file, ids):
    """Positions whose logits are stored (but the last prompt row), and the log-probabilities."""
    rows = load_file(directory / "prefill.safetensors")[f"{sequence}.rows"].long()
    logits = load_file(directory / file)[f"{sequence}.logits"]
    inner = rows < len(ids) - 1
    table = torch.log_softmax(logits[inner].double(), -1)
    rows = rows[inner]
    return rows, table.gather(1, ids[rows + 1].unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("config", ["a", "b", "d"])
@pytest.mark.parametrize("sequence", ["s0", "s1"])
def test_scores_are_the_golden_log_probabilities(golden_dir, config, sequence, capsys, tmp_path):
    directory = golden_dir / f"config-{config}"
    ids, found = scored(directory, sequence, "noquant", capsys, tmp_path)
    rows, expected = stored(directory, sequence, "noquant.safetensors", ids)
    assert len(rows) >= 6
    torch.testing.assert_close(found[rows].double(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("config", ["a", "b", "d"])
def test_scores_with_quantisers_stay_near_the_golden_ones(golden_dir, config, capsys, tmp_path):
    directory = golden_dir / f"config-{config}"
    ids, found = scored(directory, "s1", "checkpoint", capsys, tmp_path)
    rows, expected = stored(directory, "s1", "prefill.safetensors", ids)
    error = (found[rows].double() - expected).pow(2).mean().sqrt() / expected.std()
    assert error < 0.3  # the limit that the manifest sets for logits
