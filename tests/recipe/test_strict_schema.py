"""Strict schemas: closed, nothing optional, and stable under closing again."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.recipe.shapes import ShapeError
from deepinfer.recipe.strict_schema import StrictFault, closed
from tests.recipe.request_values import Values


def close(schema: Any, *, empty_allowed: bool = True) -> dict[str, Any]:
    return closed(schema, "here", "test", empty_allowed=empty_allowed)


def holding(node: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": node}}


def objects(node: Any) -> list[dict[str, Any]]:
    """Every object schema in a schema."""
    if isinstance(node, list):
        return [found for item in node for found in objects(item)]
    if not isinstance(node, dict):
        return []
    inner = [found for item in node.values() for found in objects(item)]
    return [node, *inner] if node.get("type") == "object" else inner


def test_a_hand_worked_schema():
    schema = {
        "title": "T",
        "type": "object",
        "description": "d",
        "properties": {
            "s": {"minLength": 1, "enum": ["x"], "type": "string", "format": "uuid"},
            "l": {"type": "array", "items": holding({"type": "null"}), "minItems": 1},
            "u": {"anyOf": [{"type": "integer", "maximum": 3, "minimum": 1}], "enum": [1]},
            "t": {"type": ["string", "null"], "pattern": "x"},
            "r": {"$ref": "#/$defs/x", "description": "gone"},
        },
    }
    inner = {**holding({"type": "null"}), "additionalProperties": False, "required": ["a"]}
    assert close(schema) == {
        "type": "object",
        "properties": {
            "s": {"type": "string", "format": "uuid", "enum": ["x"]},
            "l": {"type": "array", "items": inner},
            "u": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 3}]},
            "t": {"type": ["string", "null"]},
            "r": {"$ref": "#/$defs/x"},
        },
        "additionalProperties": False,
        "required": ["s", "l", "u", "t", "r"],
        "description": "d",
    }


@given(st.randoms(use_true_random=False))
def test_closed_schemas_are_closed_everywhere_and_stay_as_they_are(source):
    maker = Values(random.Random(source.random()))
    try:
        strict = close(maker.strict_schema())
    except (ShapeError, StrictFault):
        assert not maker.careful
        return
    for node in objects(strict):
        assert node["additionalProperties"] is False
        assert node["required"] == list(node["properties"])
    assert close(strict) == strict


@pytest.mark.parametrize(
    ("schema", "fault", "path"),
    [
        ({"type": "string"}, "The top level of the test schema must be an object.", "here"),
        (holding({"type": "object"}), "An object with no properties", "here.properties.a"),
        ({**holding({"type": "null"}), "required": []}, "must match all properties", "here"),
        ({**holding({"type": "null"}), "required": ["a", "a"]}, "Duplicate", "here"),
        ({**holding({"type": "null"}), "required": ["b"]}, "'b' not found", "here"),
        ({**holding({"type": "null"}), "additionalProperties": True}, "not be true", "here"),
    ],
)
def test_broken_rules_are_named_with_their_place(schema, fault, path):
    with pytest.raises(StrictFault, match=fault) as caught:
        close(schema)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({}, "one of `type`, `anyOf`, `$ref` field is required"),
        ({"oneOf": []}, "one of `type`, `anyOf`, `$ref` field is required"),
        ({"type": "array"}, "missing field `items`"),
        ({"type": "string", "format": "date"}, "unknown variant `date`"),
        ({"type": ["object"]}, "field `type`: unknown variant `object`"),
        ({"anyOf": [{}]}, "field `anyOf`: missing field `type`"),
        ({"type": "integer", "minimum": 1.5}, "floating point `1.5`, expected i64"),
    ],
)
def test_what_strict_schemas_do_not_know_is_refused(node, text):
    with pytest.raises(ShapeError) as caught:
        close(holding(node))
    assert text in str(caught.value)
    assert caught.value.path.startswith("here.properties.a")


def test_only_the_parameters_of_a_tool_may_be_empty():
    assert close({"type": "object"})["required"] == []
    with pytest.raises(StrictFault, match="no properties"):
        close({"type": "object"}, empty_allowed=False)
