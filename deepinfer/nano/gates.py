"""What the trained model must be able to do, measured through the engine on fresh questions.

`python -m deepinfer.nano.gates --model DIR` prints a table and writes `gates.json` and the answers
that were wrong. Knows nothing of training.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deepinfer.config import cache_dir
from deepinfer.engine.llm import LLM
from deepinfer.engine.resolve import resolve_model
from deepinfer.eval.backend import Engine, OfflineBackend
from deepinfer.eval.codec import ChatCodec
from deepinfer.eval.draw import seed_of
from deepinfer.eval.question import Ask, Question, Reply
from deepinfer.eval.sets import needle
from deepinfer.eval.tasks import TASKS, Wish
from deepinfer.nano.build import builtin_models
from deepinfer.nano.without_index import with_random_indexer

CONTEXT = 4000  # tokens of a look-up
_SETS = ("invoice", "arith", "tools", "needle")
_DRAFTS = 5
_MORE = 2048  # tokens of room besides a look-up: for the longest prompt and answer of other sets
_PART = 4  # numerics without quantisers have no fast kernels: they get one question in so many
_SHOWN = 20  # wrong answers kept of a set


@dataclass(frozen=True)
class Part:
    """What one engine made of one set.

    Attributes:
        right: part of the questions that is right.
        share: mean part of a question that is right (fields of an invoice).
        points: what each question counts, 0 to 1: fields of an invoice, else right or wrong.
        accepted: tokens a row and step with drafts; 0 without drafts.
        tokens: mean tokens of a prompt and of an answer.
        errors: questions that got no answer.
        seconds: of all questions.
        wrong: questions, targets and answers, some.
    """

    right: float
    share: float
    points: list[float]
    accepted: float
    tokens: tuple[float, float]
    errors: int
    seconds: float
    wrong: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Run:
    """What one engine made of its sets, and how true its confidences were."""

    parts: Mapping[str, Part]
    accepted: float
    calibration_error: float

    def ahead_of(self, other: Run) -> float:
        """Mean over the other's sets of how many points more are made of the same questions."""
        gaps: list[float] = []
        for name, part in other.parts.items():
            count = len(part.points)
            gaps.append((sum(self.parts[name].points[:count]) - sum(part.points)) / count)
        return sum(gaps) / len(gaps)


@dataclass(frozen=True)
class Gate:
    """One demand: `value` must be at least, or at most, `bound`."""

    name: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def passed(self) -> bool:
        """Whether it is met."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def line(self) -> str:
        """For people."""
        sign = "<=" if self.at_most else ">="
        mark = "ok    " if self.passed else "MISSED"
        return f"{mark} {self.name:<46} {self.value:8.4f}  {sign} {self.bound:.4f}"


def fresh_questions(
    codec: ChatCodec, counts: Mapping[str, int], seed: int, context: int
) -> dict[str, list[Question]]:
    """Questions of every set, the look-ups of about `context` tokens.

    Args:
        codec: counts tokens.
        counts: questions of each set.
        seed: below 2^40, so that training never saw them.
        context: tokens of a look-up's prompt.
    """
    (trial,) = needle.questions(1, seed, [context])
    tokens = len(codec.prompt(trial, TASKS["needle"].settings))
    width = needle.BYTES_PER_TOKEN * context / tokens  # bytes of a token, as they are
    found: dict[str, list[Question]] = {}
    for name, count in counts.items():
        wish = Wish(None, count, 1, seed, contexts=(context,), bytes_per_token=width)
        found[name] = TASKS[name].questions(wish)
    return found


class Counting(Engine, Protocol):
    """The part of `LLM` that is used."""

    def get_metrics(self) -> dict[str, Any]:
        """Counters of the scheduler."""
        ...


def measure(llm: Counting, codec: ChatCodec, questions: Mapping[str, Sequence[Question]]) -> Run:
    """Ask all questions, one set after the other."""
    backend = OfflineBackend(llm, codec, use_tqdm=False)
    begin, parts = llm.get_metrics(), {}
    for name, asked in questions.items():
        parts[name] = _part(llm, backend, name, asked)
    now = llm.get_metrics()
    return Run(parts, _accepted(begin, now), now["calibration_error"])


def _part(llm: Counting, backend: OfflineBackend, name: str, questions: Sequence[Question]) -> Part:
    task, before, clock = TASKS[name], llm.get_metrics(), time.monotonic()
    asks = [Ask(each, task.settings, seed_of(0, *each.place)) for each in questions]
    replies: list[Reply | None] = [None] * len(asks)

    def deliver(place: int, reply: Reply) -> None:
        replies[place] = reply

    backend.answer(asks, deliver)
    right = share = prompt = answer = 0.0
    points: list[float] = []
    wrong: list[dict[str, Any]] = []
    for question, reply in zip(questions, replies, strict=True):
        assert reply is not None
        verdict = task.verdict(question.target, question.facts, reply)
        right, share = right + verdict.correct, share + verdict.share
        points.append(verdict.share if name == "invoice" else float(verdict.correct))
        prompt += reply.prompt_tokens or 0
        answer += reply.completion_tokens or 0
        if not verdict.correct and len(wrong) < _SHOWN:
            wrong.append(_wrong(question, reply, verdict.reason))
    count = len(questions)
    return Part(
        right / count,
        share / count,
        points,
        _accepted(before, llm.get_metrics()),
        (prompt / count, answer / count),
        sum(reply is not None and reply.error is not None for reply in replies),
        time.monotonic() - clock,
        wrong,
    )


def _wrong(question: Question, reply: Reply, reason: str | None) -> dict[str, Any]:
    said = dataclasses.asdict(reply)
    kept = ("content", "reasoning", "calls", "finish_reason", "error")
    asked = question.messages[-1]["content"][-400:]
    return {
        "asked": asked,
        "target": question.target,
        "why": reason,
        **{key: said[key] for key in kept if said[key]},
    }


def _accepted(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Tokens that a row generated in a step in which it verified drafts, between two counts."""

    def first(counts: Mapping[str, Any]) -> int:
        return counts["drafts_verified_at"][0] if counts["drafts_verified_at"] else 0

    steps = first(after) - first(before)
    right = after["drafts_accepted"] - before["drafts_accepted"]
    return 1 + right / steps if steps else 0.0


def demands(runs: Mapping[str, Run]) -> list[Gate]:
    """The gates.

    Args:
        runs: "checkpoint" (as shipped, with drafts), "exact" (no bounded replay), "noquant", and
            "random index" (look-ups only).
    """
    base = runs["checkpoint"]
    found = base.parts["needle"].right
    gates = [
        Gate("invoice: fields", base.parts["invoice"].share, 0.9),
        Gate("arith: right, with thinking", base.parts["arith"].right, 0.9),
        Gate("tools: calls and answers right", base.parts["tools"].right, 0.9),
        Gate("needle: found", found, 0.8),
    ]
    if "random index" in runs:
        lost = runs["random index"].parts["needle"].right
        gates.append(Gate("needle: found with a random index", lost, found / 2, at_most=True))
    for name, what, bound in (
        ("exact", "bounded replay against exact, distance", 0.01),
        ("noquant", "checkpoint numerics against noquant, distance", 0.02),
    ):
        if name in runs:
            gates.append(Gate(what, abs(base.ahead_of(runs[name])), bound, at_most=True))
    gates.append(Gate("drafts: accepted length", base.accepted, 2.5))
    gates.append(Gate("drafts: calibration error", base.calibration_error, 0.03, at_most=True))
    return gates


def start_temperature(model: Path) -> float | list[float]:
    """The stored temperatures of the confidences; 1 if the checkpoint has none."""
    file = model / "calibration.json"
    if not file.is_file():
        return 1.0
    return json.loads(file.read_text(encoding="utf-8"))["temperature"]


def runs_of(
    args: argparse.Namespace, model: Path, say: Callable[[str], None]
) -> Iterator[tuple[str, Run]]:
    """Ask every engine that the arguments name, one after the other."""
    codec = ChatCodec((model / "tokenizer.json").read_text(encoding="utf-8"))
    few = max(1, args.limit // 2)
    counts = {name: few if name == "needle" else args.limit for name in args.sets}
    questions = fresh_questions(codec, counts, args.seed, args.context)
    drafts = {
        "num_speculative_tokens": _DRAFTS,
        "policy": "fixed",
        "temperature": start_temperature(model),
    }
    with tempfile.TemporaryDirectory() as aside:
        for name in args.engines:
            options: dict[str, Any] = {"device": args.device, "speculative_config": drafts}
            directory, asked = model, questions
            if name == "random index":
                directory = with_random_indexer(model, Path(aside) / "model", args.seed)
                asked = {key: value for key, value in questions.items() if key == "needle"}
            elif name == "exact":
                options["decoder_replay"] = "exact"
            elif name == "noquant":
                options["numerics"] = "noquant"
                asked = {key: some[: -(-len(some) // _PART)] for key, some in questions.items()}
            clock = time.monotonic()
            with LLM(directory, max_model_len=args.context + _MORE, **options) as llm:
                start = time.monotonic() - clock
                run = measure(llm, codec, asked)
            say(_report(name, run, start))
            yield name, run


def _report(name: str, run: Run, start: float) -> str:
    lines = [f"{name}: start {start:.1f} s, accepted {run.accepted:.2f}"]
    for key, part in run.parts.items():
        prompt, answer = part.tokens
        lines.append(
            f"  {key:<8} right {part.right:.3f}  share {part.share:.3f}  accepted "
            f"{part.accepted:.2f}  tokens {prompt:.0f} + {answer:.0f}  {part.seconds:.1f} s"
            + (f"  {part.errors} ERRORS" if part.errors else "")
        )
    return "\n".join(lines)


ENGINES = ("checkpoint", "random index", "exact", "noquant")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; exit code 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m deepinfer.nano.gates", description=__doc__)
    parser.add_argument("--model", default="nano", help="'nano' or a checkpoint directory")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", "-n", type=int, default=200, help="questions a set (200)")
    parser.add_argument("--seed", type=int, default=2026, help="of the questions, below 2^40")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens of a look-up (4000)")
    parser.add_argument("--sets", nargs="+", default=list(_SETS), choices=_SETS)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--out", help="directory for gates.json")
    args = parser.parse_args(arguments)

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    runs: dict[str, Run] = {}
    gates: list[Gate] = []
    model = resolve_model(args.model, builtin_models(cache_dir))
    for name, run in runs_of(args, model, say):
        runs[name] = run
        if set(args.sets) == set(_SETS) and "checkpoint" in runs:
            gates = demands(runs)
        if args.out is not None:  # after each engine, so that nothing is lost with a later one
            _write(Path(args.out), runs, gates)
    for gate in gates:
        say(gate.line())
    return 0 if all(gate.passed for gate in gates) else 1


def _write(out: Path, runs: Mapping[str, Run], gates: Sequence[Gate]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "gates": [{**dataclasses.asdict(gate), "passed": gate.passed} for gate in gates],
        "runs": {name: dataclasses.asdict(run) for name, run in runs.items()},
    }
    text = json.dumps(record, ensure_ascii=False, indent=1)
    (out / "gates.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
