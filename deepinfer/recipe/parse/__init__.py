"""Model output to labelled spans; machine.py finds them, pieces.py cuts them at chunks."""

from deepinfer.recipe.parse.pieces import OutputParser
from deepinfer.recipe.parse.spans import Label, Span

__all__ = ["Label", "OutputParser", "Span"]
