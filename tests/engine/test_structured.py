"""Structured output in the engine: valid, the same in any company, and never fatal to others."""

import asyncio
import dataclasses
import json
import re
from concurrent.futures import Future

import jsonschema
import pytest

from deepinfer.engine.async_engine import AsyncEngine
from deepinfer.engine.constrained import Demand
from deepinfer.errors import RequestError
from deepinfer.grammar import After, AtEach, Constraint, Tool, tool_calls
from deepinfer.request import SamplingParams, StructuredOutputsParams
from tests.engine.constrained import (
    END,
    MARK,
    THINK_END,
    Knowing,
    run,
    service,
    tokenizer,
)
from tests.engine.engines import LIMITS

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", 3]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMS = {
    "json": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    "spaced": StructuredOutputsParams(json={"type": "array", "items": {"type": "boolean"}}),
    "regex": StructuredOutputsParams(regex="[a-f]{2,5}-[0-9]{2}"),
    "choice": StructuredOutputsParams(choice=["yes", "no", "not at all"]),
    "ebnf": StructuredOutputsParams(grammar='root ::= "(" root ")" | [a-c]+'),
}


def params(form: str | None = None, **values) -> SamplingParams:
    given = {"max_tokens": 30, "seed": 5, **values}
    if form is not None:
        given["structured_outputs"] = FORMS[form]
    return SamplingParams(**given)


MIX = [
    ("a{b" * 40, params("json")),
    ("free", params(logprobs=1, max_tokens=12)),
    ("one two three " * 9, params("spaced", seed=6, max_tokens=20)),
    ("x<think>", params("regex", logit_bias={THINK_END: 4.0}, max_tokens=40)),
    ("c", params("choice", temperature=0, n=2)),
    (
        "((",
        params(
            "ebnf", repetition_penalty=1.2, max_tokens=15, logprobs=2, logprobs_mode="processed"
        ),
    ),
    ("greedy and free", params(temperature=0, max_tokens=9, logprobs=1)),
    ("ab", params("regex", top_k=5, stop=["-1"])),
]


def outcome(output):
    assert output.error is None
    return [dataclasses.replace(completion, seed=None) for completion in output.outputs]


@pytest.fixture(scope="module")
def alone():
    """Each of the mix served alone, one token a step."""
    return [run(service()[0], [asked])[0] for asked in MIX]


def test_served_alone_a_text_satisfies_its_demand(alone):
    found = {}
    for (_, wanted), output in zip(MIX, alone, strict=True):
        (completion, *others) = outcome(output)
        assert all(other.text == completion.text for other in others)  # greedy
        assert completion.violation is None
        if wanted.structured_outputs is not None and completion.finish_reason == "stop":
            found[len(found)] = completion
    texts = [completion.structured for completion in found.values()]
    assert len(texts) >= 4
    jsonschema.validate(json.loads(texts[0]), SCHEMA)
    thought = outcome(alone[3])[0]
    assert thought.text.endswith(f"</think>{thought.structured}")
    assert re.fullmatch("[a-f]{2,5}-[0-9]{2}", thought.structured)
    assert outcome(alone[4])[0].text in ("yes", "no", "not at all")
    assert outcome(alone[7])[0].stop_reason in ("-1", None)


@pytest.mark.parametrize(
    ("drafts", "ahead", "pages", "patience"),
    [(3, False, 12, 0), (5, True, 3, 60), pytest.param(0, True, 12, 60, marks=pytest.mark.slow)],
)
def test_company_chunks_overlap_drafts_preemption_and_late_masks_change_nothing(
    alone, drafts, ahead, pages, patience
):
    answers = [(*o.prompt_token_ids, *c.token_ids) for o in alone for c in o.outputs]
    limits = dataclasses.replace(LIMITS, max_draft=drafts, num_pages=pages)
    proposer = Knowing(drafts, answers) if drafts else None
    engine, _ = service(limits, ahead=ahead, proposer=proposer, patience=patience)
    found = run(engine, MIX)
    assert [outcome(output) for output in found] == [outcome(output) for output in alone]
    counters = engine.core.scheduler.snapshot()
    assert (counters.preemptions > 0) == (pages == 3)
    assert (engine.core.masks.late > 0) == (patience == 0)
    if drafts:
        assert counters.drafts_accepted > 20
        assert counters.drafts_verified > counters.drafts_accepted


def test_free_rows_have_the_same_bits_without_constrained_company(alone):
    free = [place for place, (_, wanted) in enumerate(MIX) if wanted.structured_outputs is None]
    found = run(service(ahead=True)[0], [MIX[place] for place in free])
    assert [outcome(o) for o in found] == [outcome(alone[place]) for place in free]


SCHEMAS = [
    {"type": "boolean"},
    {"const": {"a": [1, "b"]}},
    {"enum": ["ab", 3, None, [True]]},
    {"type": "integer", "minimum": -5, "maximum": 12},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 90},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "string", "maxLength": 4},
    {"type": "string", "pattern": "^[a-c]{2}$"},
    {"type": "string", "format": "date"},
    {"type": ["null", "boolean"]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"enum": ["x"]}], "items": False},
    {"type": "object", "additionalProperties": False},
    SCHEMA,
    {"type": "object", "properties": {"n": {"$ref": "#/$defs/d"}}, "required": ["n"],
     "additionalProperties": False, "$defs": {"d": {"enum": [7, 8, 9]}}},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    {"type": "object", "properties": {"o": {"type": "object", "properties": {"p": {"const": 0}},
     "required": ["p"], "additionalProperties": False}}, "additionalProperties": False},
    {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 2, "maxItems": 2},
    {"oneOf": [{"const": "a"}, {"const": 1}]},
    {"type": "string", "minLength": 3, "maxLength": 3, "pattern": "^[x-z]+$"},
]  # fmt: skip


def test_twenty_schemas_with_random_weights_are_satisfied_when_the_text_ends():
    """Drawn at random; the length is enough for most."""
    asked = [
        (
            "s",
            SamplingParams(
                max_tokens=60, seed=i, structured_outputs=StructuredOutputsParams(json=schema)
            ),
        )
        for i, schema in enumerate(SCHEMAS)
    ]
    ended = 0
    for schema, output in zip(SCHEMAS, run(service(ahead=True)[0], asked), strict=True):
        (completion,) = outcome(output)
        assert completion.violation is None, (schema, completion.text)
        if completion.finish_reason == "stop":
            jsonschema.validate(json.loads(completion.text), schema)
            ended += 1
    assert ended >= 16


def test_a_text_that_is_cut_is_the_beginning_of_a_valid_one():
    engine, compiler = service()
    wanted = params("json", max_tokens=5)
    (output,) = run(engine, [("x", wanted)])
    (completion,) = outcome(output)
    assert completion.finish_reason == "length"
    assert completion.structured == completion.text
    assert completion.violation is None
    grammar = compiler.compile(Constraint("json_schema", json.dumps(SCHEMA), False)).result()
    assert grammar.matcher().accept(completion.token_ids) == 5


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"structured_outputs": StructuredOutputsParams(regex="(")}, "unclosed group"),
        ({"structured_outputs": StructuredOutputsParams(regex="[A-Z]+")}, "no token is allowed"),
        ({"so_args": {"schema_type": "xml", "schema": ""}}, "schema_type 'xml'"),
        (
            {"so_args": {"schema_type": "regex", "schema": "a", "trigger_token_ids": [END]}},
            "end tokens",
        ),
        (
            {"structured_outputs": FORMS["choice"], "allowed_token_ids": [20, END]},
            "no token is allowed",
        ),
        ({"structured_outputs": FORMS["choice"], "min_tokens": 25}, "no token is allowed"),
    ],
)
def test_what_cannot_be_satisfied_is_the_error_of_that_request_only(alone, values, says):
    free = MIX[1]
    asked = [
        free,
        ("bad", SamplingParams(max_tokens=30, seed=1, **values)),
        ("c", params("choice")),
    ]
    first, bad, last = run(service(ahead=True)[0], asked)
    assert says in (bad.error or "")
    assert outcome(first) == outcome(alone[1])
    assert outcome(last)[0].text in ("yes", "no", "not at all")


@pytest.mark.parametrize(
    "values",
    [
        {"ignore_eos": True},
        {"forced_token_ids": [5]},
        {"so_args": {"schema_type": "regex", "schema": "a"}},
        {"structured_outputs": {"regex": "a"}},
    ],
)
def test_values_that_contradict_a_demand_are_refused_where_they_are_written(values):
    with pytest.raises(RequestError, match="structured"):
        SamplingParams(**{"structured_outputs": FORMS["choice"], **values})


def test_the_original_spelling_starts_after_its_trigger_and_a_bound_token_forces_it():
    colon, comma = (tokenizer().encode(char)[0] for char in ":,")
    args = {"schema_type": "regex", "schema": "[0-9]{3}", "trigger_token_ids": [colon, comma]}
    free = SamplingParams(max_tokens=12, seed=4, so_args=args)
    nudged = dataclasses.replace(free, logit_bias={THINK_END: 30.0})
    bound = dataclasses.replace(nudged, so_args={**args, "bound_token_id": THINK_END})
    plain, _, forced = (
        outcome(o)[0] for o in run(service()[0], [("a", free), ("a", nudged), ("a", bound)])
    )
    assert plain.structured is None
    assert END not in plain.token_ids  # it may not end before the demand is met
    assert forced.token_ids[:3] == (THINK_END, colon, comma)
    assert re.fullmatch("[0-9]{3}", forced.structured or "")


def test_a_grammar_that_takes_long_holds_nobody_else_up():
    engine, compiler = service(ahead=True)
    compiler.held = []
    engine.add("slow", "a", params("choice"))
    engine.add("gone", "a", params("regex", n=2))
    engine.add("free", "b", params(max_tokens=6))
    done = {}
    while "free" not in done:
        done |= {o.request_id: o for o in engine.step() if o.finished}
    assert set(done) == {"free"}
    assert engine.abort("gone")
    (gone,) = [o for o in engine.step() if o.finished]
    assert [c.finish_reason for c in gone.outputs] == ["abort", "abort"]
    assert not engine.idle
    compiler.release()
    while not engine.idle:
        done |= {o.request_id: o for o in engine.step() if o.finished}
    assert outcome(done["slow"])[0].text in ("yes", "no", "not at all")


def test_calls_in_free_text_are_enforced_also_inside_drafts():
    tool = Tool("f", None, strict=True)
    demand = Demand(tool_calls([tool], "v4.1", required=False, parallel=False), AtEach(MARK, b"<"))
    opener = tokenizer().encode("<")[0]
    bias = {opener: 12.0, MARK: 14.0, END: -100.0}
    wanted = SamplingParams(max_tokens=80, seed=2, logit_bias=bias)

    def answer(drafts, answers=()):
        limits = dataclasses.replace(LIMITS, max_draft=drafts)
        proposer = Knowing(drafts, answers) if drafts else None
        engine, _ = service(limits, ahead=True, proposer=proposer)
        engine.add("0", "a", wanted, demand=demand)
        outputs = [output for _ in range(400) for output in engine.step() if output.finished]
        engine.close()
        return outputs[0]

    alone = answer(0)
    (completion,) = outcome(alone)
    calls = re.findall("<｜DSML｜ calls>\n(.*?)</｜DSML｜ calls>", completion.text, re.DOTALL)
    assert len(calls) == 1
    assert not completion.text.endswith("calls>")  # free again
    assert calls[0].split() == ["<｜DSML｜", "invoke", 'name="f">', "</｜DSML｜", "invoke>"]
    assert completion.structured is None  # it begins more than once
    known = [(*alone.prompt_token_ids, *completion.token_ids)]
    assert outcome(answer(4, known)) == [completion]


def test_a_second_reader_that_disagrees_is_told():
    engine, compiler = service()
    compiler.opinion = "at /a: wrong"
    (output,) = run(engine, [("a", params("choice"))])
    assert output.error is None
    assert output.outputs[0].violation == "at /a: wrong"


def test_last_words_of_a_dead_engine_have_what_was_generated_and_what_was_not_checked():
    engine, compiler = service()
    compiler.check = lambda constraint, text: Future()  # nobody ever answers
    engine.add("done", "c", params("choice", temperature=0))
    engine.add("open", "free", params(max_tokens=150, temperature=0, ignore_eos=True))
    while "done" not in engine._checking:
        list(engine.step())
    compiler.held = []
    engine.add("compiling", "ab", params("regex"))
    list(engine.step())
    done, unfinished, compiling = engine.last_words(RuntimeError("gone"))
    assert (done.error, done.outputs[0].finish_reason) == (None, "stop")
    assert done.outputs[0].text in ("yes", "no", "not at all")
    assert done.outputs[0].violation == "not checked: the engine died"
    for output in (unfinished, compiling):
        assert output.finished
        assert output.error == "the engine died: RuntimeError: gone"
        assert output.outputs[0].finish_reason == "error"
    assert len(unfinished.outputs[0].token_ids) > 0
    assert compiling.outputs[0].token_ids == ()
    engine.core.close()


def test_a_demand_beside_the_sampling_values_is_one_too_many():
    engine, _ = service()
    demand = Demand(Constraint("regex", "a"), After(()))
    with pytest.raises(RequestError, match="another form"):
        engine.add("x", "a", params("regex"), demand=demand)
    engine.add("x", "a", params(temperature=0), demand=demand)
    outputs = []
    while not engine.idle:
        outputs += [o for o in engine.step() if o.finished]
    assert outcome(outputs[0])[0].text == "a"
    engine.close()


def test_the_asynchronous_engine_refuses_what_does_not_compile_before_it_streams():
    async def ask():
        engine, compiler = service(ahead=True)
        compiler.held = []
        served = AsyncEngine(engine)
        tasks = [
            asyncio.ensure_future(served.add(name, "a", SamplingParams(structured_outputs=form)))
            for name, form in (
                ("good", FORMS["choice"]),
                ("bad", StructuredOutputsParams(regex="(")),
            )
        ]
        leaver = asyncio.ensure_future(served.add("leaver", "a", params("regex")))
        while len(compiler.held) < 3:
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        leaver.cancel()
        compiler.release()
        with pytest.raises(RequestError, match="unclosed"):
            await tasks[1]
        stream = await tasks[0]
        while not (output := await stream.get()).finished:
            pass
        assert outcome(output)[0].text in ("yes", "no", "not at all")
        assert await served.drain(5)
        served.close()

    asyncio.run(ask())
