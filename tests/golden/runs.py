"""Runs golden prompts through the network: prefill, decoding, drafts and bounded replay.

What a run computed is kept, so that several tests can look at it. Knows no limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Arch, Record
from deepinfer.model.drafter import Drafter
from deepinfer.model.load import LoadOptions, load_network
from deepinfer.model.network import Forward, Network
from deepinfer.model.operations import OPS
from deepinfer.model.state import State
from deepinfer.ops.formats import decode_parts, decode_record
from deepinfer.ops.markov_draft import Drafts
from deepinfer.ops.products import matmul
from deepinfer.ops.registry import REFERENCE
from deepinfer.runner.assemble import RowSlice, assemble
from tests.golden.compare import Golden

CPU = torch.device("cpu")
SLOT = 2  # any but the reserved one
SHOWN_DRAFTS = 3  # anchors whose draft logits are stored
Observed = dict[tuple[str, int], Tensor]


def wishes(ops: str) -> dict[str, str]:
    """Named implementations: "cpu" wherever there is one, which leaves the references' bits."""
    if ops != "cpu":
        return {"*": ops}
    exact = [name for name, op in OPS.items() if any(i.name == ops for i in op.implementations)]
    return {"*": REFERENCE} | dict.fromkeys(exact, ops)


@dataclass
class Model:
    """A golden configuration loaded in one numeric mode; `ops` is a wish, see `wishes`."""

    golden: Golden
    numerics: str
    ops: str = "reference"

    @cached_property
    def network(self) -> Network:
        options = LoadOptions(numerics=self.numerics, ops=wishes(self.ops))
        return load_network(self.golden.folder / "checkpoint", CPU, "cpu", options)

    @property
    def arch(self) -> Arch:
        return self.network.arch

    def prompt(self, sequence: str) -> list[int]:
        return self.golden.tensor("prefill", f"{sequence}.input_ids").tolist()


class Session:
    """One request: its tokens, its state, and how it is computed.

    Args:
        network: the network to run.
        decoder_start: first position that runs the decoder layers.
        compact: remove the other prompt rows at the boundary, else only mask them.
        tokens: most tokens the request will have.
    """

    def __init__(
        self, network: Network, *, decoder_start: int = 0, compact: bool = True, tokens: int
    ):
        self.network = network
        self.drafter = Drafter(network)
        self.decoder_start = decoder_start
        self.compact = compact
        self.ids: list[int] = []
        count = -(-tokens // PAGE_TOKENS)
        self.pages = list(range(count, 0, -1))  # descending, so that a mix-up shows
        self.state = State.allocate(
            network.arch, network.records, pages=count + 1, slots=SLOT + 1, device=CPU
        )

    def feed(self, tokens: Sequence[int], observed: Observed | None = None) -> Forward:
        """Compute the next tokens and store the drafter's keys of the rows that ran through."""
        done = len(self.ids)
        self.ids += tokens
        engram = self.network.arch.engram
        step = assemble(
            [RowSlice(self.ids, done, len(tokens), SLOT, self.pages, self.decoder_start)],
            1 if engram is None else engram.max_ngram_size,
            CPU,
            compact=self.compact,
        )

        def observer(name: str, layer: int, value: Tensor) -> None:
            if observed is not None:
                observed[name, layer] = value

        watch = None if observed is None else observer
        forward = self.network.forward(step.history, step.batch, self.state, step.tail, watch)
        assert forward.features is not None
        self.drafter.seed(forward.features, forward.batch, self.state)
        return forward

    def draft(self, newest: int) -> Drafts:
        """Drafts behind the newest token, which is not fed yet."""
        return self.drafter.draft(
            torch.tensor([newest]),
            torch.tensor([len(self.ids) - 1]),
            torch.tensor([SLOT]),
            torch.tensor([self.decoder_start]),
            self.state,
        )

    def ring(self, ring: Tensor, window: int) -> Tensor:
        """Decoded vectors of a ring's last `window` positions, by position mod window."""
        length, rows = len(self.ids), ring.shape[1]
        last = list(range(max(0, length - window), length))
        kept = decode_record(ring[SLOT, [p % rows for p in last]], self.network.records.window)
        return kept[sorted(range(len(last)), key=lambda i: last[i] % window)]

    def latents(self, owner: int) -> Tensor:
        """Decoded latents of all complete entries."""
        return self._entries(owner, self.network.records.latent)

    def index_keys(self, owner: int) -> Tensor:
        """Decoded index keys of all complete entries."""
        return self._entries(owner, None)

    def _entries(self, owner: int, latent: Record | None) -> Tensor:
        views = self.state.owners[owner]
        count = len(self.ids) // views.ratio
        if latent is not None:
            return decode_record(views.latents[self.pages].flatten(0, 1)[:count], latent)
        codes = views.key_codes[self.pages].flatten(0, 1)[:count]
        scales = views.key_scales[self.pages].flatten(0, 1)[:count]
        return decode_parts(codes, scales, self.network.records.index_key.format)


@dataclass
class Run:
    """A prompt prefilled, continued and drafted for; rows are those that ran all layers.

    Attributes:
        observed: the trace of the prefill.
        logits: [rows, vocab] of the prompt; rows end with the prompt's last position.
        features: [rows, targets * hidden], input of the drafter.
        draft_rings: [stages, slots, head_dim] after the prefill, slot = position mod window.
        tokens, step_logits: the continuation; step_logits[j] belongs to tokens[j].
        selects: layer -> [steps, top-k].
        draft_tokens: [anchors, 1 + block]; column 0 is the newest token.
        confidence, draft_logits, base_logits: of the drafts (logits: first anchors only).
        session: the request in its final state.
    """

    session: Session
    observed: Observed
    logits: Tensor
    features: Tensor
    draft_rings: Tensor
    tokens: list[int] = field(default_factory=list)
    step_logits: list[Tensor] = field(default_factory=list)
    selects: dict[int, list[Tensor]] = field(default_factory=dict)
    drafts: list[Drafts] = field(default_factory=list)
    newest: list[int] = field(default_factory=list)

    @property
    def draft_tokens(self) -> Tensor:
        newest = torch.tensor(self.newest).unsqueeze(1)
        return torch.cat((newest, torch.cat([d.tokens for d in self.drafts])), dim=1)

    @property
    def confidence(self) -> Tensor:
        return torch.cat([d.confidence for d in self.drafts])

    @property
    def draft_logits(self) -> Tensor:
        return torch.cat([d.logits for d in self.drafts[:SHOWN_DRAFTS]])

    @property
    def base_logits(self) -> Tensor:
        """Draft logits without the bias that follows from the token before."""
        weights = self.session.drafter.weights.markov
        before = self.draft_tokens[:SHOWN_DRAFTS, :-1]
        return self.draft_logits - matmul(weights.embed[before], weights.head)

    def draft_logits_after(self, tokens: Tensor) -> Tensor:
        """Draft logits of the first anchors behind given draft tokens [anchors, 1 + block]."""
        weights = self.session.drafter.weights.markov
        before = tokens[:SHOWN_DRAFTS, :-1].long()
        return self.base_logits + matmul(weights.embed[before], weights.head)

    @property
    def margins(self) -> Tensor:
        """Gap between the two best logits: the last prompt row, then every step."""
        best = torch.stack([self.logits[-1], *self.step_logits]).topk(2, dim=1).values
        return best[:, 0] - best[:, 1]


def run(
    network: Network,
    prompt: Sequence[int],
    *,
    steps: int,
    anchors: Sequence[int] | None = None,
    fed: Sequence[int] | None = None,
    keep: int | None = None,
    compact: bool = True,
) -> Run:
    """Prefill a prompt in one step, then decode and draft.

    Args:
        network: the network.
        prompt: token ids.
        steps: tokens to continue with.
        anchors: newest token of each anchor (one more than steps); None: the greedy ones.
        fed: tokens to feed; None: the greedy ones.
        keep: prompt rows that run the decoder layers; None: all.
        compact: see `Session`.
    """
    start = 0 if keep is None else max(0, len(prompt) - keep)
    session = Session(network, decoder_start=start, compact=compact, tokens=len(prompt) + steps)
    observed: Observed = {}
    forward = session.feed(prompt, observed)
    first = 0 if compact else start  # the mask form returns every row
    hidden, features = forward.hidden[first:], forward.features
    assert features is not None
    window = network.arch.sliding_window
    rings = torch.stack([session.ring(ring, window) for ring in session.state.drafts])
    result = Run(session, observed, network.logits(hidden), features[first:], rings)
    last = result.logits[-1]
    for step in range(steps + 1):
        greedy = int(last.argmax())
        newest = greedy if anchors is None else anchors[step]
        result.newest.append(newest)
        result.drafts.append(session.draft(newest))
        if step == steps:
            break
        token = greedy if fed is None else fed[step]
        trace: Observed = {}
        last = network.logits(session.feed([token], trace).hidden)[0]
        result.tokens.append(token)
        result.step_logits.append(last)
        for (name, layer), value in trace.items():
            if name == "select":
                result.selects.setdefault(layer, []).append(value[0])
    return result


class Runs:
    """All golden configurations under one directory, with everything that has been run."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._golden: dict[str, Golden] = {}
        self._models: dict[tuple[str, str, str], Model] = {}
        self._runs: dict[tuple[str, str, str, int | None, bool], Run] = {}

    def golden(self, config: str) -> Golden:
        if config not in self._golden:
            self._golden[config] = Golden(self._folder / f"config-{config}")
        return self._golden[config]

    def model(self, config: str, numerics: str, ops: str = "reference") -> Model:
        key = (config, numerics, ops)
        if key not in self._models:
            self._models[key] = Model(self.golden(config), numerics, ops)
        return self._models[key]

    def noquant(
        self, config: str, sequence: str, keep: int | None = None, *, compact: bool = True
    ) -> Run:
        """Free-running without quantisers."""
        key = (config, "noquant", sequence, keep, compact)
        if key not in self._runs:
            model = self.model(config, "noquant")
            steps = self.steps(config, keep)
            self._runs[key] = run(
                model.network, model.prompt(sequence), steps=steps, keep=keep, compact=compact
            )
        return self._runs[key]

    def primary(
        self, config: str, sequence: str, keep: int | None = None, *, compact: bool = True
    ) -> Run:
        """Checkpoint numerics, fed with the stored tokens.

        The longest prompt runs the CPU's operations with sums in float64: sooner, and equal by bit,
        which `test_implementations` shows.
        """
        key = (config, "checkpoint", sequence, keep, compact)
        if key not in self._runs:
            longest = config == "d" and sequence == "s2"
            model = self.model(config, "checkpoint", "cpu" if longest else "reference")
            tokens, newest = self._stored(config, sequence, keep)
            self._runs[key] = run(
                model.network,
                model.prompt(sequence),
                steps=len(tokens),
                anchors=newest,
                fed=tokens,
                keep=keep,
                compact=compact,
            )
        return self._runs[key]

    def steps(self, config: str, keep: int | None) -> int:
        """Decoding steps that the golden data have for full (keep None) and bounded prefill."""
        manifest = self.golden(config).manifest
        if keep is None:
            return manifest["decode_steps"]
        for name in ("replay", "replay2"):
            if keep in manifest.get(name, {}).get("keep", ()):
                return manifest[name]["steps"]
        return 10  # replay of configurations a and b: README section 3

    def _stored(self, config: str, sequence: str, keep: int | None) -> tuple[list[int], list[int]]:
        golden = self.golden(config)
        stem, file, drafts = sequence, "decode", "dspark"
        if keep is not None:
            stem = f"{sequence}.keep{keep}"
            file = drafts = next(
                f for f in ("replay2", "replay") if (f, f"{stem}.tokens") in golden
            )
        newest = golden.tensor(drafts, f"{stem}.draft_tokens")[:, 0]
        return golden.tensor(file, f"{stem}.tokens").tolist(), newest.tolist()
