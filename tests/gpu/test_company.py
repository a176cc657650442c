"""The trained embedded model on the device: one digest alone and among 63, with all that varies."""

import pytest

from deepinfer.engine.invariance import Grid, check_invariance
from deepinfer.engine.options import EngineOptions
from deepinfer.nano.build import nano_directory

pytestmark = pytest.mark.gpu


def test_one_digest_alone_and_among_63_with_graphs_and_drafts_in_chunks_and_directly(
    gpu, tmp_path_factory
):
    nano = nano_directory(tmp_path_factory.mktemp("nano"))
    common = {"threads": (1,), "prompt_tokens": 124, "max_tokens": 10}
    grids = [
        (False, Grid((1, 64), (0,), drafts=(3,), **common)),
        # The longest probe fills a page nearly: with two pages its answer needs another's.
        (False, Grid((4,), (7,), preempt=True, **common)),
        (True, Grid((4,), (0,), **common)),
    ]
    runs = [
        run
        for eager, grid in grids
        for run in check_invariance(
            nano, EngineOptions(device="cuda", enforce_eager=eager), grid
        ).runs
    ]
    assert len(runs) == 2 + 2 + 1
    assert len({run.digest for run in runs}) == 1, runs
    assert any(run.preemptions for run in runs)
