"""Every public name of the wheel is there, with its parameters: code moves by one import."""

from __future__ import annotations

import inspect
from typing import Any

from deepinfer import recipe
from deepinfer.recipe import ConversionOptions, ThinkingInitialStage
from tests.recipe.oracle import wheel


def public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def parameters(function: Any) -> list[str] | None:
    """Names of parameters, None where the wheel does not tell them."""
    try:
        return [name for name in inspect.signature(function).parameters if name != "self"]
    except ValueError:
        return None


def lacking(theirs: Any, ours: Any) -> set[str]:
    """Parameters of the wheel's that ours does not have."""
    return set(parameters(theirs) or ()) - set(parameters(ours) or ())


def test_every_name_of_the_wheel_is_there_with_its_parameters():
    module = wheel()
    for name in public(module):
        theirs, ours = getattr(module, name), getattr(recipe, name)
        if not isinstance(theirs, type):
            continue
        if name != "SpecialTokens":  # ours takes them as keywords of a typed dictionary
            assert not lacking(theirs, ours), name
        if issubclass(theirs, BaseException):
            continue
        for member in public(theirs):
            method = getattr(ours, member)
            if callable(getattr(theirs, member)):
                assert not lacking(getattr(theirs, member), method), (name, member)


def test_every_special_token_can_be_spelt_otherwise():
    names = parameters(wheel().SpecialTokens) or []
    assert len(names) == len(recipe.SpecialToken)
    for name in names:
        changed = recipe.SpecialTokens(**{name: "x"})
        spelt = [token.name for token in recipe.SpecialToken if changed.token(token) == "x"]
        assert spelt == [name.title().replace("_", "")]


def test_every_option_can_be_changed_in_a_copy():
    first = ConversionOptions()
    changes = {
        "default_thinking_mode": False,
        "reasoning_content_behavior": recipe.ReasoningContentBehavior.Reject,
        "responses_web_search": recipe.WebSearchBehavior.Reject,
        "messages_web_search": recipe.WebSearchBehavior.Drop,
        "special_tokens": recipe.SpecialTokens(user="U"),
        "model_versions_by_name": {"m": recipe.ModelVersion.DeepseekV4Pro},
        "thinking_max_tokens_upper_bound": 5,
        "non_thinking_max_tokens_upper_bound": 6,
    }
    assert set(changes) == set(ConversionOptions.__dataclass_fields__)
    for name, value in changes.items():
        second = getattr(first, f"with_{name}")(value)
        assert getattr(second, name) == value != getattr(first, name)
        kept = [getattr(second, other) == getattr(first, other) for other in changes]
        assert kept.count(False) == 1
    assert first == ConversionOptions()


def test_only_an_answer_that_continues_content_does_not_start_in_reasoning():
    for stage in ThinkingInitialStage:
        theirs = getattr(wheel().ThinkingInitialStage, stage.name)
        assert stage.starts_in_reasoning() == theirs.starts_in_reasoning()
