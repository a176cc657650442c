"""Names of the bounded-replay data: which prompt rows a golden file keeps, and under what stem."""

from __future__ import annotations

from typing import NamedTuple

SEQUENCES = ("s1", "s2")
KEEPS = {"a": (20, 22, 28), "b": (28, 30, 36), "d": (140, 146)}


class Stored(NamedTuple):
    """Where one file keeps one replay: `<stem>.tail_logits` and so on."""

    file: str
    stem: str


def noquant_places(config: str, sequence: str, keep: int) -> list[Stored]:
    """Files that hold a replay without quantisers; a file that lacks it is no error here."""
    file = "replay" if config == "d" else "replay2"
    places = [Stored(file, f"noquant.{sequence}.keep{keep}")]
    if config != "d":
        places.append(Stored("noquant", f"{sequence}.replay{keep}"))
    return places


def primary_places(sequence: str, keep: int) -> list[Stored]:
    """Files that may hold a replay with quantisers."""
    return [Stored(file, f"{sequence}.keep{keep}") for file in ("replay", "replay2")]
