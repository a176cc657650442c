"""Random Messages requests.

It does not know the other protocols.
"""

from __future__ import annotations

from typing import Any

from tests.recipe.request_values import EFFORTS, NOTHING, URLS, RequestValues


class MessagesMaker(RequestValues):
    """Draws requests. `fields` leaves out what is drawn as NOTHING."""

    def body(self) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        for _ in range(self.one(1, 1, 2, 3, 4, *self.bad(0))):
            messages += self.turn()
        body = self.fields(
            model=self.model(),
            messages=self.disturbed(messages),
            system=self.rarely(self.one(self.text(), "", [], self.texts(), None), 0.3),
            max_tokens=self.rarely(self.one(1, 50, 393217, *self.bad(0)), 0.5),
        )
        return self.shuffled({**body, **self.sampling(), **self.wishes()})

    def texts(self) -> list[dict[str, Any]]:
        return [{"type": "text", "text": self.text()} for _ in range(self.one(1, 2))]

    def wishes(self) -> dict[str, Any]:
        self.no_schema = self.bad(None, NOTHING)
        tools = [self.tool(name) for name in "fgh"[: self.one(0, 0, 1, 2, 3)]]
        choice = {"type": self.one("auto", "any", "none", "tool", "tool"), **self.noise("x")}
        name = self.one("f", "f", *self.bad("g", "ws", "zz"))
        thinking = {"type": self.one("enabled", "disabled", "disabled", "adaptive")}
        return self.fields(
            tools=tools or self.rarely(None),
            tool_choice=self.rarely({**choice, "name": name}, 0.3),
            thinking=self.rarely({**thinking, **self.noise("budget_tokens", 1024)}, 0.5),
            output_config=self.rarely(self.one({"effort": self.one(*EFFORTS, None)}, {}), 0.3),
            stop_sequences=self.rarely(self.one([], ["a"], *self.bad([""], ["x"] * 17))),
            metadata=self.rarely({"user_id": self.one("u", None)}),
            top_k=self.rarely(self.value()),
        )

    def tool(self, name: str) -> dict[str, Any]:
        kind = self.one("web_search_20250305", *self.bad("bash_20250124"))
        deferred = self.noise("defer_loading", self.one(name != "f", *self.bad(True)), 0.3)
        function = {**self.function("input_schema", name), **deferred}
        return self.one(*[function] * 8, {"type": kind, "name": "ws"})

    def turn(self) -> list[dict[str, Any]]:
        kind = self.one("user", "user", "assistant", "calls", "calls", "system")
        if kind == "calls":
            return self.calls()
        if kind == "assistant":
            blocks = [*self.thoughts(), *self.blocks("assistant")]
            return [{"role": "assistant", "content": self.one(self.text(), blocks)}]
        content = self.one(self.text(), self.blocks(kind))
        return [{"role": kind, "content": content}]

    def thoughts(self) -> list[dict[str, Any]]:
        one = {"type": "thinking", "thinking": self.text(), "signature": "s"}
        return [one] * self.one(0, 0, 1, 2)

    def blocks(self, role: str) -> list[dict[str, Any]]:
        return [self.block(role) for _ in range(self.one(1, 2, 3, *self.bad(0)))]

    def block(self, role: str) -> dict[str, Any]:
        reference = {"type": "tool_reference", "name": self.one("f", *self.bad("g", "zz"))}
        special = {
            "user": {"type": "text", "text": self.text()},
            "system": {"type": "tool_addition", "tool": reference},
            "assistant": {
                "type": "server_tool_use",
                "id": "s",
                "name": "web_search",
                "input": self.value(),
            },
        }[role]
        odd = self.one(
            {"type": "thinking", "thinking": "t"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {}},
            {"type": "tool_result", "tool_use_id": "1"},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "redacted_thinking", "data": "x"},
        )
        text = {"type": "text", "text": self.text()}
        common = (text, text, self.image(), self.document())
        return self.one(*common, special, *self.bad(special, odd))

    def image(self) -> dict[str, Any]:
        data = self.one("AAAA", "AA==", "AA=", "", *self.bad("AA", "!"))
        media = self.one("image/png", "image/jpg", *self.bad("image/bmp"))
        source = self.one(
            {"type": "base64", "media_type": media, "data": data},
            {"type": "url", "url": self.one(*URLS[:2], *self.bad(self.url()))},
            *self.bad({"type": "file", "file_id": "x"}),
        )
        return {"type": "image", "source": source}

    def document(self) -> dict[str, Any]:
        media = self.noise("media_type", self.one("text/plain", "application/pdf"), 0.7)
        return {"type": "document", "source": {"type": "text", **media, "data": self.text()}}

    def calls(self) -> list[dict[str, Any]]:
        ids = self.ids()
        uses = [
            {"type": "tool_use", "id": id, "name": self.one("f", "g"), "input": self.value()}
            for id in ids
        ]
        results = [
            {"type": "tool_result", "tool_use_id": id, **self.noise("content", content, 0.8)}
            for id in ids
            for content in [self.one(self.text(), self.result_parts(), None)]
        ]
        self.source.shuffle(results)
        text = [{"type": "text", "text": self.text()}] if self.chance(0.4) else []
        after = [{"type": "text", "text": self.text()}] if self.chance(0.3) else []
        return [
            {"role": "assistant", "content": [*self.thoughts(), *text, *uses]},
            {"role": "user", "content": [*results, *after]},
        ]

    def result_parts(self) -> list[dict[str, Any]]:
        reference = {"type": "tool_reference", "tool_name": self.one("f", *self.bad("g", "zz"))}
        text = {"type": "text", "text": self.text()}
        parts = (text, text, self.image(), self.document(), reference)
        return [self.one(*parts) for _ in range(self.one(0, 1, 2))]
