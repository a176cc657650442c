"""Turns what is to be computed into tensors."""
