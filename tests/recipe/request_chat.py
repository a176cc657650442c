"""Random Chat Completions requests.

It does not know the other protocols.
"""

from __future__ import annotations

from typing import Any

from tests.recipe.request_values import EFFORTS, RequestValues


class ChatMaker(RequestValues):
    """Draws requests. `fields` leaves out what is drawn as NOTHING."""

    def body(self) -> dict[str, Any]:
        messages = [self.system()] if self.chance(0.3) else []
        for _ in range(self.one(1, 1, 2, 3, 4, *self.bad(0))):
            messages += self.turn()
        if self.chance(0.1):
            messages.append({**self.assistant(), "prefix": True})
        body = {"model": self.model(), "messages": self.disturbed(messages)}
        return self.shuffled({**body, **self.sampling(), **self.wishes()})

    def wishes(self) -> dict[str, Any]:
        tools = [self.tool(name) for name in "fgh"[: self.one(0, 0, 1, 2, 3)]]
        word = self.one("none", "auto", "required", "auto")
        named = {"type": "function", "function": {"name": self.one("f", "f", *self.bad("zz"))}}
        stop = self.one("x", ["a", "b"], [], None, *self.bad("", ["a", ""], ["x"] * 17))
        thinking = {"type": self.one("enabled", "disabled", "disabled", "adaptive")}
        return self.fields(
            tools=tools or self.rarely(None),
            tool_choice=self.rarely(self.one(word, named, None), 0.3),
            thinking=self.rarely(self.one(thinking, {**thinking, "budget_tokens": 5}, None), 0.4),
            reasoning_effort=self.rarely(self.one(*EFFORTS, None), 0.3),
            response_format=self.rarely(self.format(), 0.25),
            stop=self.rarely(stop),
            stream_options=self.rarely({"include_usage": self.one(True, None)}, 0.05),
            max_tokens=self.rarely(self.one(1, 5, *self.bad(0, 50, 393216, 393217))),
            presence_penalty=self.rarely(self.one(0, 2, -2, *self.bad(2.1))),
            frequency_penalty=self.rarely(self.one(0, 2, -2, *self.bad(-2.1))),
            logprobs=self.rarely(self.one(True, True, False, None), 0.3),
            top_logprobs=self.rarely(self.one(0, 5, 20, 21), 0.05),
            seed=self.rarely(self.one(0, 7, 2**63 - 1, *self.bad(2**63))),
            n=self.rarely(self.one(1, None, *self.bad(2, 0))),
            user=self.rarely(self.value()),
        )

    def format(self) -> dict[str, Any]:
        named = {"name": "n", "schema": self.schema(), "strict": self.one(True, False, None)}
        return self.one(
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_object"},
            {"type": "regex", "regex": self.text()},
            {"type": "json_schema", "json_schema": named},
            {"type": "json_schema", "json_schema": {**named, "schema": self.strict_schema()}},
        )

    def tool(self, name: str) -> dict[str, Any]:
        return {"type": "function", "function": self.function("parameters", name)}

    def system(self) -> dict[str, Any]:
        return {"role": "system", "content": self.content()}

    def turn(self) -> list[dict[str, Any]]:
        kind = self.one("user", "user", "assistant", "calls", "calls", "system", "reminder")
        if kind == "calls":
            return self.calls()
        if kind == "assistant":
            return [self.assistant()]
        if kind == "reminder":
            return [{"role": "latest_reminder", "content": self.text()}]
        return [{"role": kind, "content": self.content(), **self.noise("name")}]

    def assistant(self) -> dict[str, Any]:
        reasoning = self.rarely(self.one(self.text(), "", None), 0.5)
        return self.fields(
            role="assistant", content=self.one(self.text(), ""), reasoning_content=reasoning
        )

    def calls(self) -> list[dict[str, Any]]:
        ids = self.ids()
        calls = [
            {
                "id": id,
                "type": "function",
                "function": {"name": self.one("f", "g", "a b"), "arguments": self.arguments()},
            }
            for id in ids
        ]
        asked = {**self.assistant(), "tool_calls": calls}
        if self.chance(0.5):
            asked["content"] = None
        results = [{"role": "tool", "tool_call_id": id, "content": self.content()} for id in ids]
        self.source.shuffle(results)
        return [asked, *results]

    def content(self) -> Any:
        if self.chance(0.6):
            return self.text()
        return [self.part() for _ in range(self.one(0, 1, 2, 3))]

    def part(self) -> dict[str, Any]:
        image = {
            "url": self.url(),
            **self.noise("detail", self.one("low", "auto", None, *self.bad("huge"))),
        }
        return self.one(
            {"type": "text", "text": self.text()},
            {"type": "text", "text": self.text(), "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": image},
            {"type": "text", "text": self.text()},
            *self.bad({"type": self.one("file", "input_audio", "text"), "file": {"file_id": "x"}}),
        )
