import json
from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Grammar, StructuredOutputsParams, constraint_of
from tests.grammar.vocabularies import compiled, encode, legal_ids, satisfies, tiny_vocabulary

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<fn=a>", "schema": SCHEMA, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"const": 1}, "end": "</fn>"},
        {"begin": "[[", "schema": {"type": "boolean"}, "end": "]]"},
    ],
    "triggers": ["<fn=", "[["],
}


def new(**more: object) -> dict[str, object]:
    schema = {"type": "json_schema", "json_schema": SCHEMA}
    tags = [
        {"type": "tag", "begin": "<fn=a>", "content": schema, "end": "</fn>"},
        {"begin": "<fn=b>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</fn>"},
    ]
    form = {"type": "triggered_tags", "triggers": ["<fn="], "tags": tags, **more}
    return {"type": "structural_tag", "format": form}


def asked(value: Any) -> Constraint:
    return constraint_of(StructuredOutputsParams(structural_tag=value))


def grammar(value: object) -> Grammar:
    return compiled(asked(json.dumps(value)))


GOOD = [
    "",
    "plain < text fn=",
    '<fn=a>{"x":1}</fn>',
    'a<fn=a>{"x":1}</fn> b [[true]]',
    "[<fn=b>1</fn>[",
]
BAD = [
    "<fn=",
    "x<fn=c>",
    '<fn=a>{"x":"y"}</fn>',
    '<fn=a>{"x":1}',
    "[[1]]",
    "[[true]",
    "<fn=b>x</fn>",
]


def test_text_is_free_but_for_what_follows_a_trigger():
    tags = grammar(OLD)
    assert [text for text in GOOD if not satisfies(tags, encode(text))] == []
    assert [text for text in BAD if satisfies(tags, encode(text))] == []


def test_new_form_says_the_same_and_more():
    tags = grammar(new())
    assert satisfies(tags, encode('a<fn=a>{"x":1}</fn><fn=b>12</fn>'))
    assert not satisfies(tags, encode("<fn=b>x</fn>"))
    one = grammar(new(at_least_one=True))
    assert not satisfies(one, encode("a"))
    assert satisfies(one, encode("a<fn=b>1</fn>a"))
    last = grammar(new(stop_after_first=True))
    assert satisfies(last, encode("a<fn=b>1</fn>"))
    assert not satisfies(last, encode("a<fn=b>1</fn>a"))
    assert satisfies(last, encode("a"))
    both = grammar(new(stop_after_first=True, at_least_one=True))
    assert not satisfies(both, encode("a"))


def test_trigger_that_ends_inside_a_token_begins_the_tag_there():
    tag = {"structures": [{"begin": "ab(", "schema": {"const": 1}, "end": ")"}], "triggers": ["ab"]}
    tokens = tiny_vocabulary()
    matcher = compiled(asked(tag), tokens).matcher()
    names = {tokens.token_bytes(id): id for id in range(tokens.size)}
    assert names[b"aba"] not in legal_ids(matcher)  # the tag would go on with "a"
    assert names[b"bb"] in legal_ids(matcher)
    assert matcher.accept([names[b"ab"]]) == 1
    assert legal_ids(matcher) == {names[b"("]}
    assert matcher.accept([names[b"("], names[b"1"], names[b")"]]) == 3
    assert tokens.end_ids[0] in legal_ids(matcher)
    matcher.rollback(2)
    assert legal_ids(matcher) == {names[b"1"]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "must be an object"),
        ({"structures": {}, "triggers": []}, "structures must be a list"),
        ({"structures": [], "triggers": ["a"]}, "give a trigger"),
        ({**OLD, "triggers": ["<fn=", "<fn=a"]}, "part of another"),
        ({**OLD, "triggers": ["<fn="]}, "tag '[[' begins with no trigger"),
        ({**OLD, "triggers": ["<fn=", "[[", "(("]}, "no tag begins with the trigger '(('"),
        ({**OLD, "triggers": [""]}, "is empty"),
        ({**OLD, "triggers": [1]}, "must be text"),
        ({**OLD, "extra": 1}, "['extra'] is unknown"),
        ({"format": {"type": "sequence"}}, "only 'triggered_tags' is possible"),
        ({"format": {**new()["format"], "tags": [{"begin": "<fn=", "content": {"type": "any_text"},  # type: ignore[dict-item]
                                                  "end": ""}]}}, "use json_schema or regex"),
        ({"structures": [{"begin": "<｜DSML｜", "schema": {}, "end": ""}], "triggers": ["<"]},
         "is a token of its own"),
        ({"structures": [{"begin": "a", "schema": {"not": {}}, "end": ""}], "triggers": ["a"]},
         "tag 'a': json schema at #: not cannot be enforced"),
    ],
)  # fmt: skip
def test_broken_tags_are_refused_with_the_reason(value, says):
    with pytest.raises(RequestError) as refusal:
        grammar(value)
    assert says in str(refusal.value)


def test_object_that_is_no_json_is_refused():
    with pytest.raises(RequestError, match="no JSON"):
        asked({"structures": object()})
