"""Inputs of `sample`; knows no expected values."""

import torch
from torch import Tensor

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.sample.state import SamplerState, SamplerTable
from deepinfer.step import Admit, RowSampling

PER_TOKEN = ("logits", "rows", "positions", "masks")

# One of each way to choose; a batch gives them to its rows in turn.
SAMPLINGS = (
    RowSampling(),
    RowSampling(temperature=0.0, logprobs=3),
    RowSampling(temperature=0.7, top_p=0.8, logprobs=2, processed_logprobs=True),
    RowSampling(top_k=5, top_p=0.9, min_p=0.01),
    RowSampling(temperature=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    RowSampling(repetition_penalty=1.4, min_p=0.05, logprobs=0),
    RowSampling(logit_bias=((3, 2.5), (7, -4.0)), min_tokens=50),
    RowSampling(allowed_token_ids=(2, 5, 11, 12), bad_words=((5,), (2, 11), (11, 2, 12))),
    RowSampling(forced_token_ids=(-1, 4, -1, 6, 6, 6, -1, 9)),
)


def admitted(row: int, prompt_len: int, sampling: RowSampling) -> Admit:
    """A request of which only sampling matters."""
    return Admit(
        row=row,
        slot=row,
        ids=(),
        prompt_len=prompt_len,
        cached=0,
        encoder_start=0,
        decoder_start=0,
        limit=1 << 20,
        end_id=1,
        stop_ids=(1, 8, 9),
        seed=977 * row,
        sample=row % 3,
        sampling=sampling,
    )


def state_of(rows: int, prompt_len: Tensor, device: torch.device) -> SamplerState:
    """Rows 1, 2, ... with the samplings above in turn; `prompt_len` [rows]."""
    table = SamplerTable(rows, device)
    for row in range(1, rows):
        table.admit(admitted(row, int(prompt_len[row]), SAMPLINGS[row % len(SAMPLINGS)]))
    return table.state


def case(make: Maker, batch: Batch) -> Case:
    """A token after each token of the batch, as in prefill with log-probabilities."""
    vocab, count, device = make.arch.vocab_size, len(batch.positions), make.device
    rows = len(batch.slots)
    prompt_len = make.integers(1, batch.max_len + 1, rows)
    return {
        "logits": make.wide(count, vocab, size=3.0),
        "state": state_of(rows, prompt_len, device),
        "rows": batch.rows,
        "positions": batch.positions + 1,
        "tokens": make.integers(0, 16, rows, batch.max_len + 1),
        "masks": make.integers(-(1 << 31), 1 << 31, count, -(-vocab // 32)).to(torch.int32),
        "keep_law": True,
    }
