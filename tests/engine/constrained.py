"""Engines with a tokenizer of 96 tokens over the tiny network, and drafts that know the answers."""

import functools
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from deepinfer.engine.border import Border
from deepinfer.engine.constrained import Grammars
from deepinfer.engine.masks import Masks
from deepinfer.engine.service import Service
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Grammar, Vocabulary
from deepinfer.grammar.finished import check_finished
from deepinfer.grammar.front import translate
from deepinfer.grammar.limits import Limits as GrammarLimits
from deepinfer.request import RequestOutput, SamplingParams
from deepinfer.runner.runner import Proposal
from deepinfer.scheduler import Limits
from tests.engine.engines import LIMITS, core
from tests.model.networks import network

ADDED = ("<begin>", "<end>", "<pad>", "<think>", "</think>", "｜DSML｜", "<image>")
END, THINK_END, MARK = 1, 4, 5
LETTERS = [*'{}[]":,.-+_<>/()|*?=', "Ġ", "Ċ", *"0123456789", *"abcdefghijklmnopqrstuvwxyz"]
PAIRS = [("t", "r"), ("u", "e"), ("a", "b"), ('"', ":"), ("1", "0"), ("}", "}"), ("n", "o")]


@functools.cache
def tokenizer() -> TextTokenizer:
    names = [*ADDED, *LETTERS, *("".join(pair) for pair in PAIRS)]
    library = Tokenizer(models.BPE({name: id for id, name in enumerate(names)}, PAIRS))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_tokens([AddedToken(name, special=False) for name in ADDED])
    with tempfile.TemporaryDirectory() as directory:
        library.save(f"{directory}/tokenizer.json")
        return TextTokenizer(Path(directory), network().arch)


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer().library.to_str(), network().arch.vocab_size, [END])


class InProcess(Grammars):
    """Compiles at once, in this process; `held` futures stay open until `release`."""

    def __init__(self) -> None:
        super().__init__(network().arch, tokenizer())
        self.held: list[tuple[Future[Grammar], Constraint]] | None = None
        self.opinion: str | None = None

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        if self.held is not None:
            self.held.append((future, constraint))
        else:
            self.finish(future, constraint)
        return future

    def finish(self, future: Future[Grammar], constraint: Constraint) -> None:
        try:
            translated = translate(constraint, vocabulary(), GrammarLimits())
            future.set_result(Grammar(constraint, vocabulary(), translated))
        except RequestError as error:
            future.set_exception(error)

    def release(self) -> None:
        assert self.held is not None
        held, self.held = self.held, None
        for future, constraint in held:
            self.finish(future, constraint)

    def check(self, constraint: Constraint, text: str) -> Future[str]:
        future: Future[str] = Future()
        said = check_finished(constraint, text) if self.opinion is None else self.opinion
        future.set_result(said)
        return future


class Knowing:
    """Proposes what followed the same tokens before, every third time with a wrong end."""

    graph_safe = False

    def __init__(self, drafts: int, answers: Sequence[Sequence[int]]):
        self.drafts = drafts
        self.answers = [list(ids) for ids in answers]

    def seed(self, forward, state):
        pass

    def propose(self, rows, groups, state, drawing):
        found = []
        for row in groups.tolist():
            known = rows.tokens[row, : rows.length[row]].tolist()
            after = next(
                (ids[len(known) :] for ids in self.answers if ids[: len(known)] == known), []
            )
            guess = [*after, *[20 + len(known) % 50] * self.drafts][: self.drafts]
            if len(known) % 3 == 0:
                guess[-1] = 7 + len(known) % 70
            found.append(guess)
        drafts = torch.tensor(found, dtype=torch.int64).reshape(len(found), self.drafts)
        return Proposal(drafts, torch.zeros(drafts.shape))


def service(
    limits: Limits = LIMITS,
    *,
    ahead: bool = False,
    proposer=None,
    patience: float = 60.0,
) -> tuple[Service, InProcess]:
    """An engine with text over the tiny network, and its compiler."""
    net = network()
    engine = core(net, limits, async_scheduling=ahead, proposer=proposer)
    engine.masks = Masks(limits.max_draft, patience)
    border = Border(net.arch, tokenizer(), limits.max_model_len, max_logprobs=1000)
    made = Service(border, engine, lambda: 77)
    compiler = InProcess()
    made._grammars = compiler
    return made, compiler


def run(engine: Service, asked: Sequence[tuple[str, SamplingParams]]) -> list[RequestOutput]:
    """Results in order; an input that is refused at the border counts as one."""
    done: dict[int, RequestOutput] = {}
    for place, (prompt, params) in enumerate(asked):
        try:
            engine.add(str(place), prompt, params)
        except RequestError as error:
            done[place] = RequestOutput(str(place), prompt, (), (), error=str(error))
    for _ in range(5000):
        if engine.idle:
            break
        done |= {int(output.request_id): output for output in engine.step() if output.finished}
        assert engine.core.scheduler.check() == []
    engine.close()
    return [done[place] for place in range(len(asked))]
