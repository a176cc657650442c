"""Two hundred schemas through the engine with random weights: what is finished is valid."""

import itertools
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from deepinfer.arch import PAGE_TOKENS
from deepinfer.bench.schemas import SCHEMAS
from deepinfer.cli.common import model_directory
from deepinfer.engine.border import Border
from deepinfer.engine.llm import LLM
from deepinfer.engine.masks import Masks
from deepinfer.engine.service import Service
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.grammar import Vocabulary
from deepinfer.model.dummy import DummySource
from deepinfer.model.network import Network
from deepinfer.model.numerics import numerics
from deepinfer.model.operations import Operations
from deepinfer.model.weights import WeightLoader
from deepinfer.request import RequestOutput, SamplingParams, StructuredOutputsParams
from deepinfer.scheduler import Limits
from tests.engine.engines import core
from tests.grammar import vocabularies
from tests.model.networks import CPU, SMALL
from tests.model.tiny import tiny_arch

LENGTH, ROWS = 512, 32
CLOSING = (b'"', b"}", b"]")


@cache
def tiny_network() -> Network:
    """Random weights of a few thousand numbers, with a vocabulary that holds every byte."""
    size = vocabularies.vocabulary().size
    one_stage: dict[str, object] = {
        "engram_layer_ids": [], "num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 1, 1]
    }  # fmt: skip
    arch = tiny_arch(**SMALL, **one_stage, vocab_size=size)
    mode = numerics("checkpoint")
    ops = Operations.bind(arch, mode, "cpu", {})
    weights = WeightLoader(DummySource(arch, 11), arch, ops, mode, CPU).load()
    return Network(arch, mode, ops, weights, None)


def asked(vocabulary: Vocabulary) -> list[SamplingParams]:
    """One request a schema, in which what closes something is likelier, so that texts end."""
    closing = {
        id: 4.0
        for id in range(vocabulary.size)
        if id not in vocabulary.control and vocabulary.token_bytes(id).startswith(CLOSING)
    }
    bias = closing | dict.fromkeys(vocabulary.end_ids, 4.0)
    return [
        SamplingParams(
            max_tokens=LENGTH - 40,
            seed=seed,
            logit_bias=bias,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for seed, schema in enumerate(SCHEMAS.values())
    ]


def judge(outputs: Sequence[RequestOutput]) -> int:
    """Check every result; how many texts were finished."""
    finished = 0
    for (name, schema), output in zip(SCHEMAS.items(), outputs, strict=True):
        assert output.error is None, (name, output.error)
        (completion,) = output.outputs
        assert completion.violation is None, (name, completion.text, completion.violation)
        if completion.finish_reason == "stop":
            jsonschema.Draft202012Validator(schema).validate(json.loads(completion.text))
            finished += 1
    return finished


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_schemas_on_a_tiny_network():
    net, vocabulary = tiny_network(), vocabularies.vocabulary()
    pages = ROWS * (LENGTH // PAGE_TOKENS)
    limits = Limits(
        num_pages=pages,
        num_slots=ROWS,
        max_model_len=LENGTH,
        max_num_batched_tokens=256,
        max_num_seqs=ROWS,
    )
    engine = core(net, limits, async_scheduling=True)
    engine.masks = Masks(limits.max_draft)
    with tempfile.TemporaryDirectory() as directory:
        vocabularies.tokenizer().save(f"{directory}/tokenizer.json")
        tokenizer = TextTokenizer(Path(directory), net.arch)
    border = Border(net.arch, tokenizer, LENGTH, max_logprobs=20)
    seeds = itertools.count(1)
    service = Service(border, engine, lambda: next(seeds))
    done: dict[str, RequestOutput] = {}
    try:
        for name, params in zip(SCHEMAS, asked(vocabulary), strict=True):
            service.add(name, "An object of the kind " + name, params)
        while not service.idle:
            done |= {one.request_id: one for one in service.step() if one.finished}
    finally:
        service.close()
    assert judge([done[name] for name in SCHEMAS]) >= 160


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_schemas_on_nano_with_random_weights():
    directory = model_directory("nano-random")
    llm = LLM(directory, device="cpu", load_format="dummy", max_num_seqs=ROWS, max_model_len=LENGTH)
    text = (directory / "tokenizer.json").read_text(encoding="utf-8")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    vocabulary = Vocabulary(text, config["text_config"]["vocab_size"], [config["eos_token_id"]])
    prompts = [f"An object of the kind {name}: " for name in SCHEMAS]
    assert judge(llm.generate(prompts, asked(vocabulary), use_tqdm=False)) >= 160
