"""Benchmarks: what was measured, against which floor and which peer, in one record format."""
