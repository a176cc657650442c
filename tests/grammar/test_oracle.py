"""Masks beside those of a matcher in plain Python, for every text that can be reached."""

import json
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Matcher, Vocabulary
from deepinfer.grammar.vocabulary import _byte_letters
from tests.grammar.oracle import Oracle
from tests.grammar.vocabularies import compiled, legal_ids, refusal_of

# Characters of one to four bytes, whole, in parts, and across the border of two.
WORDS = ["ä", "日", "ab", "ba", "aab", "10", '":', '{"', "]}", '"a', "true", "fal", "se", "null"]
TOKENS = [
    *(bytes([b]) for b in b'ab01"{}[]:,-. xtruefalsn'),
    *(bytes([b]) for b in "ä日😀".encode()),
    *(word.encode() for word in WORDS),
    "日".encode()[:2], b"a" + "ä".encode()[:1], "ä".encode()[1:] + b"b", "😀".encode()[1:], b"\xff",
]  # fmt: skip


@cache
def vocabulary() -> Vocabulary:
    letters = {byte: letter for letter, byte in _byte_letters().items()}
    vocab = {
        "".join(letters[b] for b in token): id for id, token in enumerate(dict.fromkeys(TOKENS))
    }
    added = [{"content": "<end>", "id": len(vocab)}]
    text = json.dumps({"model": {"vocab": vocab}, "added_tokens": added})
    return Vocabulary(text, len(vocab) + 3, [len(vocab)])


def compare(matcher: Matcher, oracle: Oracle, most: int) -> int:
    """Compare the masks of up to `most` texts, the short ones first; how many there were.

    Each is reached by rolling back the one before, which is often as long.
    """
    tokens = vocabulary()
    waiting: list[list[int]] = [[]]
    seen: set[bytes] = set()
    while waiting and len(seen) < most:
        ids = waiting.pop(0)
        text = b"".join(map(tokens.token_bytes, ids))
        if text in seen:
            continue
        seen.add(text)
        matcher.rollback(matcher.num_tokens)
        assert matcher.accept(ids) == len(ids)
        wanted = oracle.masks(text, tokens)
        assert legal_ids(matcher) == wanted, (text, {tokens.token_bytes(i) for i in wanted})
        waiting += [[*ids, id] for id in sorted(wanted - set(tokens.end_ids))]
    return len(seen)


ATOMS = ["a", "b", "ab", "0", "日", "ä", "😀"]
# Each way to write the same: EBNF and regex.
PARTS = st.recursive(
    st.sampled_from(
        [(f'"{a}"', a) for a in ATOMS]
        + [(c, c) for c in ("[ab]", "[^a]", "[ä日]", "[^ä]", "[0-9]", "[b-日]", "[😀-😂]")]
    ),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map(
            lambda parts: (" ".join(e for e, _ in parts), "".join(r for _, r in parts))
        )
        | st.lists(inner, min_size=2, max_size=3).map(
            lambda parts: (
                f"({' | '.join(e for e, _ in parts)})",
                f"({'|'.join(r for _, r in parts)})",
            )
        )
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])).map(
            lambda p: (f"({p[0][0]}){p[1]}", f"({p[0][1]}){p[1]}")
        )
    ),
    max_leaves=6,
)


@given(PARTS)
@settings(max_examples=30)
def test_masks_of_regexes_and_of_the_same_grammars_are_those_of_the_oracle(pair):
    ebnf, regex = pair
    oracle = Oracle(f"root ::= {ebnf}")
    for constraint in (Constraint("ebnf", f"root ::= {ebnf}"), Constraint("regex", regex)):
        compare(compiled(constraint, vocabulary()).matcher(), oracle, 25)


RULES = st.recursive(
    st.sampled_from(['"a"', '"b"', '"ab"', "[^ab]", '"ä"', '""', "root", "x", "x"]),
    lambda inner: (
        st.lists(inner, min_size=2, max_size=3).map(" ".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({' | '.join(parts)})")
        | st.tuples(inner, st.sampled_from(["*", "?", "{1,2}"])).map(lambda p: f"({p[0]}){p[1]}")
    ),
    max_leaves=5,
)


@given(st.tuples(RULES, RULES).map(lambda bodies: f"root ::= {bodies[0]}\nx ::= {bodies[1]}"))
@example('root ::= root root | "a"\nx ::= ""')
@example('root ::= "a" root "b" | x\nx ::= x? "ab" | ""')
@settings(max_examples=50)
def test_masks_of_recursive_grammars_are_those_of_the_oracle(source):
    if refusal := refusal_of(Constraint("ebnf", source), vocabulary()):
        assert "never ends" in refusal
        return
    grammar = compiled(Constraint("ebnf", source), vocabulary())
    compare(grammar.matcher(), Oracle(source), 20)


# What a JSON Schema means, written as a grammar: without white space, in the order of the schema.
STRING = r'string ::= "\"" ([^"\\\x00-\x1f\x7f] | "\\" ["\\bfnrt])* "\""'
INTEGER = 'integer ::= "-"? ("0" | [1-9] [0-9]*)'
SCHEMAS = [
    ({"type": "string"}, f"root ::= string\n{STRING}"),
    ({"type": "integer"}, f"root ::= integer\n{INTEGER}"),
    ({"enum": [True, "ab", 10, {"a": []}]}, r'root ::= "true" | "\"ab\"" | "10" | "{\"a\":[]}"'),
    ({"type": "string", "maxLength": 2, "minLength": 1},
     r'root ::= "\"" ([^"\\\x00-\x1f\x7f] | "\\" ["\\bfnrt]){1,2} "\""'),
    ({"type": "string", "pattern": "^(ab|ä)+$"}, r'root ::= "\"" ("ab" | "ä")+ "\""'),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
     'root ::= "[" (bool ("," bool)?)? "]"\nbool ::= "true" | "false"'),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"const": "x"}},
      "required": ["b"], "additionalProperties": False},
     r'root ::= "{" ("\"a\":" integer ",")? "\"b\":\"x\"" "}"' + f"\n{INTEGER}"),
    ({"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
      "required": ["a"], "additionalProperties": False},
     r'root ::= "{\"a\":" (root | "null") "}"'),
    ({"type": "object", "patternProperties": {"^a+$": {"const": 1}}, "additionalProperties": False,
      "maxProperties": 2},
     'root ::= "{" (pair ("," pair)?)? "}"\n' + r'pair ::= "\"" "a"+ "\":1"'),
]  # fmt: skip


@pytest.mark.parametrize("case", SCHEMAS, ids=lambda case: json.dumps(case[0])[:50])
def test_masks_of_json_schemas_are_those_of_the_grammar_they_mean(case):
    schema, source = case
    constraint = Constraint("json_schema", json.dumps(schema), any_whitespace=False)
    oracle = Oracle(source)
    assert compare(compiled(constraint, vocabulary()).matcher(), oracle, 150) > 10
    # Deep into a text, where the short ones above do not come.
    matcher = compiled(constraint, vocabulary()).matcher()
    ids: list[int] = []
    choose = np.random.default_rng(0)
    for _ in range(40):
        text = b"".join(map(vocabulary().token_bytes, ids))
        legal = legal_ids(matcher)
        assert legal == oracle.masks(text, vocabulary()), text
        if not legal - set(vocabulary().end_ids):
            break
        ids.append(int(choose.choice(sorted(legal - set(vocabulary().end_ids)))))
        assert matcher.accept(ids[-1:]) == 1


def test_oracle_knows_what_a_text_is():
    oracle = Oracle('root ::= "a" root "b" | "ä"?')
    sets = oracle.first
    assert oracle.complete(sets)
    for byte in "aäb".encode():
        sets = oracle.after(sets, byte)
    assert oracle.complete(sets)
    assert not oracle.after(sets, ord("b"))[-1]
    for broken in (b"\xff", b"\x80", b"\xc3\x28", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90"):
        sets = Oracle("root ::= [^]").first
        for byte in broken:
            sets = Oracle("root ::= [^]").after(sets, byte)
        assert not sets[-1], broken


def test_oracle_is_refused_what_is_no_grammar():
    with pytest.raises(RequestError):
        Oracle("root ::= (")
