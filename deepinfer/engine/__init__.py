"""The engine: from a model name and texts to tokens and back."""
