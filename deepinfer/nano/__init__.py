"""The embedded default model: built from a seed, small enough for any machine."""
