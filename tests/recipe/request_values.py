"""The values that random requests are made of, and the ways to spoil a request.

It does not know what the protocols make of them.
"""

from __future__ import annotations

import json
import random
from typing import Any

# Stands for a member that is left out.
NOTHING: Any = object()

TEXTS = (
    "",
    "x",
    "hello",
    "Say it in JSON, please",
    "<｜User｜>",
    "<｜image｜>",
    "a<｜image｜>b<｜image｜>",
    "<pic>",
    "<think>",
    "</think>",
    "<｜DSML｜ calls>",
    "\n\n",
    " ",
    'quote " backslash \\ tab \t',
    "NUL \0 bidi \u202e",
    "你好 é 🎉",
    "<tool_result>",
)
URLS = ("http://host/a.png", "HTTPS://host", "data:image/png;base64,AAAA")
BROKEN_URLS = (
    "data:image/bmp;base64,AAAA",
    "data:image/png;base64,!",
    "data:,x",
    "ftp://host",
    "",
)
ARGUMENTS = (
    "{}",
    '{"a":1}',
    '{"a": "b", "c": [1, 2.5, null]}',
    '{"a":1e5,"b":-0.0,"c":1000000000000000000000000000000}',
    "",
    "[]",
    '{"a":',
    '"{}"',
)
SCALARS = (None, True, False, 0, 1, -1, 2**63, 1.5, 1e5, -0.0, 1e30, 1e-7, "s", "", "é")
JUNK = (None, True, 1, -1, 1.5, "s", [], {}, 2**40)
MODELS = ("DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
CAREFUL = 0.6
PATTERNS = ("^a+$", "[0-9]{2}", "x*")
BROKEN_PATTERNS = ("(", "[", "a{2,1}")


class Values:
    """Draws values from a random source."""

    def __init__(self, source: random.Random):
        self.source = source
        # Some requests are wrong on purpose; the others draw good values only.
        self.careful = source.random() < CAREFUL
        self.strict = source.random() < 0.2
        self.no_schema: tuple[Any, ...] = (None, NOTHING)

    def chance(self, part: float) -> bool:
        """True in this part of all cases."""
        return self.source.random() < part

    def one(self, *choices: Any) -> Any:
        """One of the choices."""
        return choices[self.source.randrange(len(choices))]

    def bad(self, *values: Any) -> tuple[Any, ...]:
        """The values if this request may be wrong, else none."""
        return () if self.careful else values

    def rarely(self, value: Any, part: float = 0.12) -> Any:
        """The value in this part of all cases, else NOTHING."""
        return value if self.chance(part) else NOTHING

    def noise(self, key: str, value: Any = "v", part: float = 0.2) -> dict[str, Any]:
        """An object with one member in this part of all cases, else an empty one."""
        return {key: value} if self.chance(part) else {}

    def fields(self, **members: Any) -> dict[str, Any]:
        """The members that are not NOTHING."""
        return {key: value for key, value in members.items() if value is not NOTHING}

    def shuffled(self, members: dict[str, Any]) -> dict[str, Any]:
        """The same members in another order."""
        keys = list(members)
        self.source.shuffle(keys)
        return {key: members[key] for key in keys}

    def disturbed(self, items: list[Any]) -> list[Any]:
        """The items, now and then without one, with one twice or with two exchanged."""
        if self.careful or len(items) < 2 or self.chance(0.8):
            return items
        i, k = self.source.randrange(len(items)), self.source.randrange(len(items))
        copy = list(items)
        if self.chance(0.4):
            del copy[i]
        elif self.chance(0.5):
            copy.insert(k, items[i])
        else:
            copy[i], copy[k] = copy[k], copy[i]
        return copy

    def text(self) -> str:
        """A text, which now and then looks like something that it is not."""
        return "".join(self.one(*TEXTS) for _ in range(self.one(1, 1, 1, 2, 3)))

    def url(self) -> str:
        """Where an image may be."""
        return self.one(*URLS, *URLS, *self.bad(*BROKEN_URLS))

    def arguments(self) -> str:
        """Arguments of a call."""
        return self.one(*ARGUMENTS)

    def value(self, depth: int = 2) -> Any:
        """Any JSON value."""
        if depth == 0 or self.chance(0.5):
            return self.one(*SCALARS)
        items = [self.value(depth - 1) for _ in range(self.one(0, 1, 2))]
        return items if self.chance(0.5) else {self.text(): item for item in items}

    def function(self, schema: str, name: str) -> dict[str, Any]:
        """Name, description and schema of a tool, mostly of this name."""
        strict = self.strict
        parameters = self.strict_schema() if strict else self.schema("object")
        return self.fields(
            name=self.one(name, name, name, *self.bad("f", "a b", "", "é")),
            description=self.one(NOTHING, None, self.text()),
            strict=strict or self.one(NOTHING, NOTHING, None, False, *self.bad(True)),
            **{schema: self.one(parameters, parameters, parameters, *self.no_schema)},
        )

    def schema(self, kind: str | None = None, depth: int = 2) -> Any:
        """A JSON Schema, mostly."""
        if kind is None and self.chance(0.1):
            return self.one(True, False, *self.bad(1, None, "s", []))
        names = ("object", "string", "integer", "number", "array", "boolean", "null")
        members = self.fields(
            type=kind
            if kind and self.chance(0.9)
            else self.one(*names, ["string"], "any", NOTHING),
            description=self.rarely(self.one("about", 1)),
            enum=self.rarely(self.one(["a", 1], [], "a")),
            minLength=self.rarely(self.one(1, -1, 1.0, 1.5)),
            multipleOf=self.rarely(self.one(2, 0, -0.5)),
            minimum=self.rarely(self.one(0, -1.5, "0")),
            pattern=self.rarely(self.one(*PATTERNS)),
            format=self.rarely(self.one("email", "date", 1)),
            default=self.rarely(self.value(1)),
            additionalProperties=self.rarely(self.one(True, False, {}, 1)),
            required=self.rarely(self.one(["a"], ["a", "a"], [1], "a", [])),
        )
        members.update({"x-other": self.value(1)} if self.chance(0.1) else {})
        if self.chance(0.15):
            members["$ref"] = self.one("#", *self.bad("#/$defs/a", "#/nowhere", "other.json", 1))
            members.update(self.noise("$defs", {"a": self.schema(None, 0)}, 0.7))
        if depth:
            members.update(self._subschemas(depth - 1))
        return self.shuffled(members)

    def _subschemas(self, depth: int) -> dict[str, Any]:
        properties = {name: self.schema(None, depth) for name in ("a", "b")[: self.one(0, 1, 2)]}
        return self.fields(
            properties=self.rarely(properties, 0.5),
            items=self.rarely(self.schema(None, depth), 0.15),
            anyOf=self.rarely([self.schema(None, depth)] * self.one(1, 2, *self.bad(0)), 0.1),
        )

    def strict_schema(self, depth: int = 2) -> dict[str, Any]:
        """An object schema by the rules of strict ones, mostly."""
        names = ["a", "b", 'quo"te'][: self.one(1, 1, 2, 3, *self.bad(0))] if depth == 2 else ["a"]
        return self.fields(
            type=self.one("object", "object", "object", *self.bad("string")),
            properties={name: self._strict_part(depth) for name in names},
            required=self.one(NOTHING, names, names, *self.bad(["a"], ["a", "a"], ["zz"])),
            additionalProperties=self.one(NOTHING, False, False, *self.bad(True, {})),
            description=self.rarely("about"),
            title=self.rarely("t"),
        )

    def _strict_part(self, depth: int) -> dict[str, Any]:
        described = {"description": "d"} if self.chance(0.3) else {}
        scalar = self.one("string", "number", "integer", "boolean", "null")
        plain = {"type": scalar, **described, **self.noise("minimum", self.one(1, *self.bad(1.5)))}
        text = {
            **self.noise("format", self.one("email", *self.bad("date"))),
            **self.noise("minLength", 1),
        }
        deep = self.strict_schema(depth - 1) if depth else plain
        return self.one(
            plain,
            plain,
            {"type": "string", **text, **self.noise("enum", ["a"]), **described},
            {"anyOf": [plain, deep], **described},
            {"type": "array", "items": deep, **described},
            {"type": ["string", "null"], **described},
            {"$ref": "#/$defs/a"},
            deep,
            *self.bad({}, {"oneOf": []}, {"type": "any"}, {"type": "array"}, True),
        )

    def spoil(self, body: Any) -> None:
        """Damage one place of a body: another value, or a member less."""
        places = _places(body)
        if not places:
            return
        holder, key = places[self.source.randrange(len(places))]
        if isinstance(holder, dict) and self.chance(0.3):
            del holder[key]
        else:
            holder[key] = self.one(*JUNK)


class RequestValues(Values):
    """Draws what requests of all protocols have, and the options of conversion."""

    def options(self) -> dict[str, Any]:
        """Options of conversion: keyword to value, or to the name of a member of an enum."""
        drawn = {
            "default_thinking_mode": self.rarely(False),
            "reasoning_content_behavior": self.rarely("Reject", 0.3),
            "responses_web_search": self.rarely("Reject"),
            "messages_web_search": self.rarely("Drop", 0.5),
            "thinking_max_tokens_upper_bound": self.rarely(100),
            "non_thinking_max_tokens_upper_bound": self.rarely(10),
            "image_token": self.rarely("<pic>"),
        }
        return {key: value for key, value in drawn.items() if value is not NOTHING}

    def model(self) -> str:
        """The name of a model."""
        return self.one(*MODELS, *MODELS, *MODELS, *self.bad("some-other"))

    def sampling(self) -> dict[str, Any]:
        """Members that all protocols have."""
        return self.fields(
            temperature=self.rarely(self.one(0, 0.3, 1, 2, 1e-50, *self.bad(2.5, -1, 1e300))),
            top_p=self.rarely(self.one(0.3, 0.95, 0.97, 1, *self.bad(0, 1.5, 1e-50))),
            stream=self.rarely(self.one(True, False, None)),
        )

    def ids(self) -> list[str]:
        """Ids of the calls of a turn."""
        pool = ["1", "2", "call_00_ET_a", "call_01_b", "x_ET_y", *self.bad("")]
        # In Responses the wheel sorts the calls of a turn; few requests shall show that.
        ids = sorted(self.source.sample(pool, self.one(1, 1, 2, 3)))
        return ids[::-1] if self.chance(0.05) else ids

    def as_text(self, body: Any) -> str | bytes:
        """The body as JSON text, now and then cut off."""
        text = json.dumps(body, ensure_ascii=self.chance(0.5))
        if not self.careful and self.chance(0.2):
            text = text[: self.source.randrange(len(text))]
        return text.encode() if self.chance(0.5) else text


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place that holds a value: the list or object, and the index or key in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[Any, Any]] = []
    for key, item in list(items):
        found.append((value, key))
        if isinstance(item, dict | list):
            found += _places(item)
    return found
