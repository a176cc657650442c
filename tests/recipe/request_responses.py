"""Random Responses requests.

It does not know the other protocols.
"""

from __future__ import annotations

from typing import Any

from tests.recipe.request_values import EFFORTS, NOTHING, RequestValues


class ResponsesMaker(RequestValues):
    """Draws requests. `fields` leaves out what is drawn as NOTHING."""

    def body(self) -> dict[str, Any]:
        items: list[dict[str, Any]] = []
        for _ in range(self.one(1, 1, 2, 3, 4, *self.bad(0))):
            items += self.turn()
        body = self.fields(
            model=self.model(),
            input=self.one(self.text(), *[self.disturbed(items)] * 4, *self.bad(NOTHING)),
            instructions=self.rarely(self.one(self.text(), "", None), 0.3),
        )
        return self.shuffled({**body, **self.sampling(), **self.wishes()})

    def wishes(self) -> dict[str, Any]:
        tools = [self.tool(name) for name in "fgh"[: self.one(0, 0, 1, 2, 3)]]
        named = {
            "type": self.one("function", "function", "web_search", *self.bad("custom", "mcp")),
            "name": self.one("f", "f", *self.bad("g", "n::f", "zz")),
        }
        summary = self.noise("summary", self.one("auto", *self.bad("long")))
        return self.fields(
            tools=tools or self.rarely(None),
            tool_choice=self.rarely(self.one("none", "auto", "required", named, None), 0.4),
            reasoning=self.rarely(
                self.one({"effort": self.one(*EFFORTS, "none", "none"), **summary}, {}, None), 0.6
            ),
            text=self.rarely({"format": self.format()}, 0.25),
            max_output_tokens=self.rarely(self.one(1, 5, *self.bad(0, 50, 393216, 393217))),
            top_logprobs=self.rarely(self.one(0, 5, 20, *self.bad(21))),
            user=self.rarely(self.text()),
            store=self.rarely(self.value()),
        )

    def format(self) -> dict[str, Any]:
        strict = self.one(True, False, None)
        return self.one(
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "name": "n", "schema": self.schema(), "strict": strict},
            {"type": "json_schema", "name": "n", "schema": self.strict_schema(), "strict": strict},
        )

    def tool(self, name: str) -> dict[str, Any]:
        function = {"type": "function", **self.function("parameters", name)}
        members = [{"type": "function", **self.function("parameters", n)} for n in "fg"]
        members += self.bad({"type": "custom", "name": "c"})
        namespace = self.fields(
            type="namespace",
            name=self.one("n", "n", "m", *self.bad("a b", "")),
            description=self.one("about n", "", NOTHING, None),
            tools=members[: self.one(0, 1, 1, 2, 3)],
        )
        search = {"type": "tool_search", **self.noise("execution", self.one("client", "server"))}
        return self.one(
            function,
            function,
            function,
            function,
            namespace,
            namespace,
            {"type": self.one("web_search", "web_search_2025_08_26", "mcp", "local_shell")},
            {**search, **self.noise("parameters", {"type": "object"})},
            *self.bad({"type": "custom", "name": self.one("apply_patch", "other")}),
        )

    def turn(self) -> list[dict[str, Any]]:
        kind = self.one("message", "message", "assistant", "reasoning", "calls", "calls", "other")
        if kind == "calls":
            return self.calls()
        if kind == "reasoning":
            return [self.reasoning()]
        if kind == "other":
            return [{"type": self.one("item_reference", "compaction", "web_search_call", "zz")}]
        role = (
            "assistant" if kind == "assistant" else self.one("user", "user", "system", "developer")
        )
        return [{**self.noise("type", "message"), "role": role, "content": self.content()}]

    def reasoning(self) -> dict[str, Any]:
        texts = [{"type": "reasoning_text", "text": self.text()} for _ in range(self.one(0, 1, 2))]
        return {"type": "reasoning", "summary": [], **self.noise("content", texts, 0.7)}

    def calls(self) -> list[dict[str, Any]]:
        ids = self.ids()
        calls, results = [], []
        for id in ids:
            kind = self.one("function", "function", "function", "custom", "search")
            call, result = getattr(self, f"{kind}_call")(id)
            calls.append(call)
            results.append(result)
        self.source.shuffle(results)
        before = [self.reasoning()] if self.chance(0.4) else []
        return [*before, *calls, *results]

    def function_call(self, id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        call = {
            "type": "function_call",
            "call_id": id,
            "name": self.one("f", "g"),
            "arguments": self.arguments(),
            **self.noise("namespace", self.one("n", "", None)),
        }
        output = self.content(output=True)
        return call, {"type": "function_call_output", "call_id": id, "output": output}

    def custom_call(self, id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        call = {"type": "custom_tool_call", "call_id": id, "name": "c", "input": self.text()}
        output = self.noise("output", self.content(output=True), 0.8)
        return call, {"type": "custom_tool_call_output", "call_id": id, **output}

    def search_call(self, id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        call = {"type": "tool_search_call", "call_id": id, "arguments": {"q": self.value()}}
        tools = [self.tool(name) for name in "pq"[: self.one(0, 1, 2)]]
        return call, {"type": "tool_search_output", "call_id": id, "tools": tools}

    def content(self, *, output: bool = False) -> Any:
        if self.chance(0.6):
            return self.text()
        return [self.part(output) for _ in range(self.one(0, 1, 2, 3))]

    def part(self, output: bool) -> dict[str, Any]:
        image = self.fields(
            type="input_image",
            image_url=self.one(self.url(), self.url(), *self.bad("", None, NOTHING)),
            file_id=self.rarely(self.one("", *self.bad("file-1"))),
            detail=self.rarely(self.one("low", "original")),
        )
        text = "input_text" if output else self.one("input_text", "output_text")
        return self.one(
            {"type": text, "text": self.text()},
            {"type": text, "text": self.text()},
            image,
            {"type": self.one("input_file", *self.bad("input_audio")), "file_id": "x"},
        )
