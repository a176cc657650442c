"""Prompts of V4 and V4.1: what is written in which order, and which of it is a special token.

It does not know requests, tokens ids or answers.
"""

from deepinfer.recipe.encode.v4 import DeepseekV4Encoding
from deepinfer.recipe.encode.v41 import DeepseekV41Encoding

__all__ = ["DeepseekV4Encoding", "DeepseekV41Encoding"]
