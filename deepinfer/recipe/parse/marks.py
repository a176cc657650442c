"""The two special tokens that the parser looks for, as they stand in the text it reads.

It does not know where they may stand.

Output that comes as text is searched for their spellings. Output that comes as ids knows more: the
same characters written with ordinary tokens are text. There each of the two tokens is one code
point that no text can hold, half of a surrogate pair, and is spelt out again on the way out.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.recipe.special_tokens import SpecialToken, SpecialTokens

THINKING_END = "\ud800"
DSML = "\ud801"


@dataclass(frozen=True, slots=True)
class Marks:
    """How `</think>` and `｜DSML｜` look in the text that is parsed."""

    thinking_end: str
    dsml: str
    spellings: dict[str, str]

    @staticmethod
    def spelt(tokens: SpecialTokens) -> Marks:
        """For output that comes as text."""
        spell = tokens.token
        return Marks(spell(SpecialToken.ThinkingEnd), spell(SpecialToken.Dsml), {})

    @staticmethod
    def tokenised(tokens: SpecialTokens) -> Marks:
        """For output that comes as ids."""
        spell = tokens.token
        spellings = {
            THINKING_END: spell(SpecialToken.ThinkingEnd),
            DSML: spell(SpecialToken.Dsml),
        }
        return Marks(THINKING_END, DSML, spellings)

    def shown(self, text: str) -> str:
        """The text with the tokens spelt out."""
        for mark, spelling in self.spellings.items():
            if mark in text:
                text = text.replace(mark, spelling)
        return text

    def hidden(self, text: str) -> str:
        """The text with the spellings made marks."""
        for mark, spelling in self.spellings.items():
            if spelling:
                text = text.replace(spelling, mark)
        return text
