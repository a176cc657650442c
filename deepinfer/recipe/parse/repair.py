"""Reading a call that is written wrongly: the rules of the lenient mode.

It does not know where a call begins or ends.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

_NAME = re.compile(r"""\s*=\s*(["'])(.*?)\1\s*/?>""")
_WRAPPED = "arguments"  # a parameter that some answers put around all others

_encode = json.JSONEncoder(ensure_ascii=False).encode


class Repair:
    """The rules for calls whose tags have one spelling of the DSML token.

    Args:
        tag: the spelling; empty for tags without the token.
    """

    def __init__(self, tag: str) -> None:
        tag = re.escape(tag)
        self._parameter = re.compile(
            rf"<{tag} ?parameter\s+name\s*=\s*([\"'])(?P<name>[^\n]{{0,256}}?)\1"
            rf"(?:\s+string\s*=\s*[\"']?(?P<string>true|false)[\"']?)?\s*>",
            re.IGNORECASE,
        )
        self._value_end = re.compile(rf"</{tag} ?param(?:eter)?>?")

    def call(self, source: str) -> tuple[str, str] | None:
        """Name and arguments of a call.

        Args:
            source: what stands between `<invoke name` and the end of the call.

        Returns:
            The name and a JSON object; None if there is no name.
        """
        match = _NAME.match(source)
        if match is None or not match.group(2).strip():
            return None
        body = source[match.end() :]
        pairs = self._pairs(body)
        if not pairs:
            plain = _loaded(body)
            return match.group(2), _encode(plain) if isinstance(plain, dict) else "{}"
        if len(pairs) == 1 and pairs[0][0] == _WRAPPED:
            inner = _loaded(pairs[0][1])
            if isinstance(inner, dict):
                return match.group(2), _encode(inner)
        joined = ", ".join(f"{_encode(name)}: {value}" for name, value in pairs)
        return match.group(2), f"{{{joined}}}"

    def _pairs(self, body: str) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        match = self._parameter.search(body)
        while match is not None:
            following = self._parameter.search(body, match.end())
            limit = len(body) if following is None else following.start()
            end = self._value_end.search(body, match.end(), limit)
            value = body[match.end() : limit if end is None else end.start()]
            if end is None:
                value = value.rstrip("\n")
            pairs.append((match.group("name"), _json_value(value, match.group("string"))))
            match = following
        return pairs


def _json_value(text: str, string: str | None) -> str:
    """A value as JSON: what is not said to be a string and is no JSON becomes one."""
    if string is not None and string.lower() == "true":
        return _encode(text)
    if _loaded(text) is None and text.strip() != "null":
        return _encode(text)
    return text.strip()


def _loaded(text: str) -> Any:
    """The JSON value of a text; None also if it has none."""
    try:
        return cast("object", json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(text: str) -> object:
    raise ValueError(f"{text} is not JSON")
