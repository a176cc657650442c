"""The training data are what the engine is given, and what the question sets ask for."""

import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from deepinfer.engine.chat import ChatCodec, ChatReader
from deepinfer.eval.codec import ChatCodec as EvalCodec
from deepinfer.eval.draw import Draw
from deepinfer.eval.question import Settings
from deepinfer.eval.sets import arith, invoice, needle, tools
from deepinfer.eval.tasks import TASKS
from deepinfer.nano.data import KINDS, batches, dialogue, mix, seeds
from deepinfer.nano.data.arithmetic import added, multiplied, subtracted
from deepinfer.nano.data.pack import NO_KIND, PADDING_ID
from deepinfer.nano.data.stream import batch, stream

SEEDS = st.integers(0, 1 << 40)
FEW = settings(max_examples=40)
DIALOGUES = [kind for kind in range(len(KINDS)) if kind != mix.TEXT]
BOS, EOS = 0, 1


@pytest.fixture(scope="module")
def encoder(tokenizer_json):
    return dialogue.Encoder(tokenizer_json)


@pytest.fixture(scope="module")
def codec(tokenizer_json):
    return ChatCodec(tokenizer_json)


@FEW
@given(kind=st.sampled_from(DIALOGUES), seed=SEEDS)
def test_a_document_begins_with_the_prompt_that_the_engine_is_given(encoder, codec, kind, seed):
    made = mix.dialogue(kind, Draw("test", seed), 512)
    document = encoder.dialogue(made)
    prompt = codec.encode(codec.convert(made.body()))
    assert document.ids[: len(prompt)].tolist() == prompt
    assert (document.weights[len(prompt) :] == 1).all()
    assert document.weights[0] == 0
    assert document.ids[-1] == EOS
    assert (document.ids[1:] != BOS).all()


@FEW
@given(kind=st.sampled_from(DIALOGUES), seed=SEEDS)
def test_the_answer_reads_back_as_the_message_that_was_meant(encoder, codec, kind, seed):
    made = mix.dialogue(kind, Draw("test", seed), 512)
    request = codec.convert(made.body())
    start = len(codec.encode(request))
    reader = ChatReader(request, codec.tokenizer)
    reader.push_ids(encoder.dialogue(made).ids[start:-1].tolist())
    reader.finish("stop")
    read, meant = reader.message(), made.messages[-1]
    assert read["content"] == (meant["content"] or None) or not meant["content"]
    assert (read.get("reasoning_content") or "") == (
        meant["reasoning_content"] if made.thinking else ""
    )
    calls = [call["function"] for call in meant.get("tool_calls", ())]
    found = [call["function"] for call in read.get("tool_calls") or ()]
    assert [call["name"] for call in found] == [call["name"] for call in calls]
    for mine, theirs in zip(found, calls, strict=True):
        assert json.loads(mine["arguments"]) == json.loads(theirs["arguments"])


@FEW
@given(kind=st.sampled_from(DIALOGUES), seed=SEEDS)
def test_earlier_answers_are_learnt_as_if_each_had_been_the_last(encoder, codec, kind, seed):
    made = mix.dialogue(kind, Draw("test", seed), 512)
    document = encoder.dialogue(made)
    spoken = document.weights == 1
    if made.thinking and not made.tools:
        # What was said before the last answer is kept without its reasoning: not as generated.
        starts = [len(codec.encode(codec.convert(made.body())))]
    else:
        starts = [
            len(codec.encode(codec.convert({**made.body(), "messages": made.messages[:place]})))
            for place, message in enumerate(made.messages)
            if message["role"] == "assistant"
        ]
    expected = np.zeros(len(spoken), bool)
    for start in starts:
        end = start + int(np.argmax(document.ids[start:] == EOS))
        expected[start : end + 1] = True
    assert np.array_equal(spoken, expected)


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        ("invoice", "invoice", lambda seed: invoice.questions(1, seed)),
        ("arith", "arith", lambda seed: arith.questions(1, seed)),
        ("tools", "tools", lambda seed: tools.questions(1, seed)),
        ("lookup", "needle", lambda seed: needle.questions(1, seed, [300])),
    ],
)
def test_questions_of_an_evaluation_are_asked_the_same_way_and_answered_right(
    tokenizer_json, encoder, kind, name, make, monkeypatch
):
    """What training makes of the very questions that an evaluation would ask scores as right."""
    codec, task, number = EvalCodec(tokenizer_json), TASKS[name], KINDS.index(kind)
    checked = 0
    for trial in range(60):
        asked = []
        original = {"invoice": invoice, "arith": arith, "tools": tools, "needle": needle}[name]

        def questions(*arguments, original=original.questions, asked=asked):
            asked.extend(original(*arguments))
            return asked[-1:]

        with monkeypatch.context() as patch:
            patch.setattr(original, "questions", questions)
            made = mix.dialogue(number, Draw("test", trial), 512)
        if not asked:
            continue
        question = asked[0]
        how = Settings(task.settings.max_tokens, thinking=made.thinking)
        if made.thinking != task.settings.thinking or len(asked) > 1:
            continue
        if len(question.messages) + 1 != len(made.messages) or made.schema != question.schema:
            continue
        prompt = codec.prompt(question, how)
        document = encoder.dialogue(made)
        assert document.ids[: len(prompt)].tolist() == prompt
        reply = codec.read(question, how, document.ids[len(prompt) : -1].tolist(), truncated=False)
        assert task.verdict(question.target, question.facts, reply).correct
        checked += 1
    assert checked >= 5


@given(draw=SEEDS)
def test_training_draws_seeds_that_no_evaluation_uses(draw):
    assert seeds.training_seed(Draw(draw)) >= 1 << 40


@given(a=st.integers(0, 9999), b=st.integers(0, 9999))
def test_every_step_of_worked_arithmetic_is_true(a, b):
    small = b % 100
    for text, value in (
        (added(a, b), a + b),
        (subtracted(a, b), a - b),
        (multiplied(a, small), a * small),
    ):
        assert text.endswith(f" {value}.")
        for step in text.replace("×", "*").replace("; so ", ". ").split(". "):
            for part in step.rpartition(": ")[2].split("; "):
                left, *rest = part.split("=")
                assert all(eval(left) == eval(right) for right in rest), part


def test_batches_depend_on_their_number_alone(tokenizer_json):
    first = list(islice(stream(tokenizer_json, 3, 2, 512, 0, 0), 3))
    later = next(stream(tokenizer_json, 3, 2, 512, 2, 0))
    other = next(stream(tokenizer_json, 4, 2, 512, 2, 0))
    assert np.array_equal(first[2].ids, later.ids)
    assert np.array_equal(first[2].weights, later.weights)
    assert not np.array_equal(first[1].ids, later.ids)
    assert not np.array_equal(other.ids, later.ids)


def test_workers_make_the_same_batches_in_order_and_end(tokenizer_json):
    ahead = stream(tokenizer_json, 3, 2, 512, 1, 1)
    alone = stream(tokenizer_json, 3, 2, 512, 1, 0)
    for _ in range(3):
        assert np.array_equal(next(ahead).ids, next(alone).ids)
    ahead.close()
    with pytest.raises(StopIteration):
        next(ahead)


@settings(max_examples=8)
@given(seed=SEEDS, shape=st.sampled_from([(3, 512), (2, 1024), (1, 2048)]))
def test_rows_hold_whole_documents_at_even_places(encoder, seed, shape):
    made = batch(encoder, seed, shape[0], shape[1], 0)
    for row in range(shape[0]):
        documents = made.documents[row]
        for number in range(documents.max() + 1):
            (places,) = np.nonzero(documents == number)
            assert places[0] % 2 == 0
            assert np.array_equal(places, np.arange(places[0], places[0] + len(places)))
            assert np.array_equal(made.positions[row, places], np.arange(len(places)))
            assert made.ids[row, places[0]] == BOS
            assert made.weights[row, places[0]] == 0
            kind = made.kinds[row, places[0]]
            assert (made.kinds[row, places] == kind).all()
            assert made.ids[row, places[-1]] == EOS or kind == mix.TEXT
    padding = made.documents < 0
    assert (made.ids[padding] == PADDING_ID).all()
    assert (made.weights[padding] == 0).all()
    assert (made.kinds[padding] == NO_KIND).all()
    assert padding.mean() < 0.08


def test_every_kind_has_its_part_of_the_tokens(encoder):
    made = batch(encoder, 5, 16, 1024, 0)
    for kind, share in mix.shares(1024).items():
        assert abs((made.kinds == kind).mean() - share) < 0.06, KINDS[kind]


def test_long_rows_hold_look_ups_that_nearly_fill_them(encoder):
    made = batch(encoder, 5, 4, 4096, 0)
    looked = made.kinds == KINDS.index("lookup")
    assert made.positions[looked].max() > 3000


def test_every_digit_is_a_token_and_training_text_is_short(tokenizer_json):
    tokenizer = Tokenizer.from_str(tokenizer_json)
    assert tokenizer.get_vocab_size() == 4096
    ids = tokenizer.encode("1234 56", add_special_tokens=False).ids
    assert [tokenizer.decode([i]) for i in ids] == ["1", "2", "3", "4", " ", "5", "6"]
    (question,) = invoice.questions(1, 9)
    text = question.messages[0]["content"]
    assert len(tokenizer.encode(text).ids) < len(text) / 2


def test_the_public_stream_is_that_of_the_tokenizer(encoder):
    assert np.array_equal(next(batches(3, 2, 512)).ids, batch(encoder, 3, 2, 512, 0).ids)
