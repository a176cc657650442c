"""Telling the opening of a block of tool calls from prose that mentions its marker.

It does not know what a block holds.
"""

from __future__ import annotations

import re

_WRAPPERS = ("calls>", "tool_calls>", "function_calls>")
_INVOKE = 'invoke name="'
# A damaged wrapper: two words at most, then nothing but white space up to the next tag.
_DAMAGED = re.compile(r" ?\w{0,20}(?: \w{1,20})?>{0,2}\s{0,16}", re.ASCII)
_KNOWN = re.compile(r" ?(?:tool_calls|function_calls|calls)>\s*")


class Opening:
    """The rule for one spelling of the DSML token.

    Args:
        dsml: without brackets.
    """

    def __init__(self, dsml: str) -> None:
        self._marker = f"<{dsml}"
        self._known = tuple(space + tag for tag in (*_WRAPPERS, _INVOKE) for space in ("", " "))
        self._next_tags = (f"<{dsml}", f"</{dsml}", f"<{_INVOKE}")
        self._calls = tuple(f"<{dsml}{space}{_INVOKE}" for space in ("", " "))
        tag = re.escape(dsml)
        self._empty = re.compile(rf"\n*(?:<{tag}[\w ]{{0,24}}>{{0,2}})?\s*</{tag} ?\w*>", re.ASCII)

    def judge(self, text: str, start: int) -> bool | None:
        """Whether what follows a marker opens a block.

        Args:
            text: output.
            start: where the marker ends.

        Returns:
            None while it depends on text to come, of which at most some hundred code points
            matter.
        """
        if text.startswith(self._known, start):
            return True
        rest = text[start : start + len(_WRAPPERS[-1]) + 1]
        if any(literal.startswith(rest) for literal in self._known):
            return None
        match = _DAMAGED.match(text, start)
        end = start if match is None else match.end()
        if text.startswith(self._next_tags, end):
            return True
        tail = text[end : end + len(self._next_tags[-1]) + len(self._marker)]
        return None if any(tag.startswith(tail) for tag in self._next_tags) else False

    def begins(self, raw: str) -> bool:
        """Whether `raw` is a well-formed block up to the name of its first call."""
        rest = raw.lstrip("\n")
        if rest.startswith(self._marker):
            rest = rest[len(self._marker) :]
            if any(literal.startswith(rest) for literal in self._known):
                return True
            match = _KNOWN.match(rest)
            rest = self._marker + rest if match is None else rest[match.end() :]
        return rest.startswith(self._calls) or any(tag.startswith(rest) for tag in self._calls)

    def is_empty_block(self, raw: str) -> bool:
        """Whether a closed block holds nothing, so that its markup is all there is."""
        return self._empty.fullmatch(raw) is not None
