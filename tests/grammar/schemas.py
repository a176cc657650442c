"""Random JSON Schemas of what is enforced, and values for them; and random walks under masks."""

import json
import random

import numpy as np
from hypothesis import strategies as st

from deepinfer.grammar import Matcher
from tests.grammar.vocabularies import legal_ids, vocabulary

WORDS = st.sampled_from(
    ["a", "b", "name", "x y", "ä", "日本", 'q"uote', "a/b~c", "back\\slash", ""]
)
NAMES = st.sampled_from(["a", "b", "name", "x y", "ä", 'q"', "a/b~c", "\\"])
NUMBERS = st.integers(-50, 50) | st.sampled_from([0.5, -1.25, 2.0, 1e3])
SCALARS = st.none() | st.booleans() | NUMBERS | WORDS


def _bounds(low: str, high: str, values: st.SearchStrategy) -> st.SearchStrategy:
    pairs = st.tuples(values, values).map(sorted)
    return (
        pairs.map(lambda p: {low: p[0], high: p[1]})
        | st.just({})
        | pairs.map(lambda p: {low: p[0]})
    )


def _merged(*parts: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(*parts).map(lambda all: {k: v for part in all for k, v in part.items()})


STRINGS = _merged(
    st.just({"type": "string"}),
    _bounds("minLength", "maxLength", st.integers(0, 6)),
    st.sampled_from([{}, {}, {"pattern": "a|b"}, {"pattern": "^[a-z]*$"}, {"pattern": r"\d{2}"}]),
) | st.sampled_from(["ipv4", "date-time", "uuid", "time", "email"]).map(
    lambda name: {"type": "string", "format": name}
)
NUMERIC = _merged(
    st.sampled_from([{"type": "integer"}, {"type": "number"}]),
    _bounds("minimum", "maximum", st.integers(-30, 90)),
    st.sampled_from([{}, {}, {}, {"multipleOf": 5}, {"exclusiveMaximum": 95}]),
)
LEAVES = (
    STRINGS
    | NUMERIC
    | st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}])
    | st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values})
    | SCALARS.map(lambda value: {"const": value})
)


def _objects(inner: st.SearchStrategy) -> st.SearchStrategy:
    @st.composite
    def build(draw: st.DrawFn) -> dict[str, object]:
        properties = draw(st.dictionaries(NAMES, inner, max_size=3))
        required = [name for name in properties if draw(st.booleans())]
        schema = {"type": "object", "properties": properties, "required": required}
        schema |= draw(
            st.sampled_from([{}, {"additionalProperties": False}])
            | inner.map(lambda more: {"additionalProperties": more})
            | inner.map(
                lambda more: {"patternProperties": {"^z": more}, "additionalProperties": False}
            )
        )
        schema |= draw(st.sampled_from([{}, {}, {"maxProperties": 4}, {"minProperties": 1}]))
        return schema

    return build()


def _arrays(inner: st.SearchStrategy) -> st.SearchStrategy:
    return _merged(
        inner.map(lambda items: {"type": "array", "items": items}),
        _bounds("minItems", "maxItems", st.integers(0, 3)),
        st.just({}) | st.lists(inner, min_size=1, max_size=2).map(lambda p: {"prefixItems": p}),
    )


def _wider(inner: st.SearchStrategy) -> st.SearchStrategy:
    branches = st.lists(inner, min_size=1, max_size=3)
    return (
        _objects(inner)
        | _arrays(inner)
        | branches.map(lambda b: {"anyOf": b})
        | st.tuples(_objects(inner), _objects(inner)).map(lambda b: {"allOf": list(b)})
        | inner.map(lambda one: {"$ref": "#/$defs/one", "$defs": {"one": one}}).map(
            lambda s: {"anyOf": [{"type": "null"}, s["$defs"]["one"]]}
        )
    )


SCHEMAS = st.recursive(LEAVES, _wider, max_leaves=6)


def random_text(matcher: Matcher, seed: int, most: int = 120) -> list[int] | None:
    """Tokens of a text chosen at random under the masks; None if it was not finished.

    Tokens that close something are preferred, more and more.
    """
    choose = random.Random(seed)
    closing = [id for id in range(vocabulary().size) if _closes(vocabulary().token_bytes(id))]
    ids: list[int] = []
    while len(ids) < most:
        legal = legal_ids(matcher)
        assert legal, "nothing is legal"
        if 1 in legal and choose.random() < 0.5:
            return ids
        near = [id for id in closing if id in legal]
        hurry = near and choose.random() < 0.2 + len(ids) / most
        ids.append(choose.choice(near if hurry else sorted(legal - {1}) or [1]))
        if ids[-1] == 1:
            return ids[:-1]
        assert matcher.accept(ids[-1:]) == 1
    return None


def _closes(token: bytes) -> bool:
    return token in (b'"', b"}", b"]", b":", b",", b"0", b"1")


def as_text(ids: list[int]) -> str:
    return b"".join(map(vocabulary().token_bytes, ids)).decode("utf-8")


def spelled(value: object, indent: int | None = None) -> str:
    """JSON as the grammar writes it: UTF-8, escapes only where they are needed."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def rows(count: int) -> np.ndarray:
    return np.zeros((count, vocabulary().words), np.int32)
