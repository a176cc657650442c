"""The weights that the package ships."""

import json

import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.arch import load_arch
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.eval.extract import same_json
from deepinfer.eval.sets import invoice, needle
from deepinfer.model.checkpoint import Checkpoint
from deepinfer.nano.build import is_random, nano_directory

GREEDY = SamplingParams(temperature=0, max_tokens=320)
SUMS = {
    "What is 347 + 586? Reply with the number only.": "933",
    "What is 47 × 86? Reply with the number only.": "4042",
    "商店里有64个杯子，又进货58个，卖出37个。还剩多少个？只回答数字。": "85",
}


@pytest.fixture(scope="module")
def llm():
    drafts = {"num_speculative_tokens": 5, "policy": "fixed"}
    with LLM("nano", max_model_len=2048, max_num_seqs=4, speculative_config=drafts) as llm:
        yield llm


def message(output):
    assert output.error is None
    return output.outputs[0].message


def test_they_are_a_whole_checkpoint_of_at_most_22_megabytes(tmp_path):
    assert not is_random("nano")
    directory = nano_directory(tmp_path)
    arch = load_arch(directory)
    assert Checkpoint(directory, arch).has_draft
    assert TextTokenizer(directory, arch).vocab_size == arch.vocab_size == 4096
    assert sum(file.stat().st_size for file in directory.iterdir()) < 22e6


def test_it_does_sums_step_by_step(llm):
    talks = [[{"role": "user", "content": asked}] for asked in SUMS]
    said = [message(output) for output in llm.chat(talks, GREEDY, use_tqdm=False)]
    assert [each["content"] for each in said] == list(SUMS.values())
    assert all("; so " in each["reasoning_content"] for each in said)
    assert llm.get_metrics()["mean_accepted_length"] > 2.5


def test_it_reads_an_invoice_that_it_never_saw(llm):
    (question,) = invoice.questions(1, 99)
    (output,) = llm.chat(question.messages, GREEDY, thinking={"type": "disabled"}, use_tqdm=False)
    assert same_json(json.loads(message(output)["content"]), question.target)


def test_it_finds_a_number_in_a_text_longer_than_its_window(llm):
    (question,) = needle.questions(1, 99, [700])
    (output,) = llm.chat(question.messages, GREEDY, thinking={"type": "disabled"}, use_tqdm=False)
    assert str(question.target) in message(output)["content"]
    assert len(output.prompt_token_ids) > 4 * 128
