"""The end of a step against a plain loop over rows and tokens."""

import numpy as np
import pytest
import torch

from deepinfer.ops.conclude import Group, RowTable, conclude
from deepinfer.step import FLAG_END, FLAG_LIMIT, FLAG_NAN, FLAG_STOP_ID

WIDTH = 40


def step(seed: int, cap: int, *, masked: bool, device: str | torch.device = "cpu"):
    """Arguments of `conclude`: a table of 12 rows, of which some generate, with padding behind."""
    draw, rows = np.random.default_rng(seed), 12
    length = draw.integers(1, 20, rows)
    tokens = draw.integers(0, 6, (rows, WIDTH))
    end_id, stop_ids = draw.integers(-1, 5, rows), draw.integers(-1, 6, (rows, 3))
    limit = length + draw.integers(1, cap + 4, rows)
    ended = draw.random(rows) < 0.2
    ended[0] = True
    group = np.concatenate((draw.permutation(np.arange(1, rows))[:8], [0, 0]))
    verified = np.minimum(draw.integers(0, cap + 1, 10), np.where(group > 0, cap, 0))
    first = np.cumsum(verified + 1) - verified - 1
    chosen, flags = [], []
    for row, count in zip(group, verified, strict=True):
        after = tokens[row, length[row] : length[row] + count + 1].copy()
        after[draw.random(count + 1) < 0.2] = 5  # most drafts are right
        broken = draw.random(count + 1) < 0.1
        chosen += np.where(broken, -1, after).tolist()
        flags += np.where(broken, FLAG_NAN, 0).tolist()
    legal = draw.integers(-1, cap + 1, rows)

    def put(values) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=device)

    table = RowTable(
        *(put(v) for v in (tokens, length, limit, np.full(rows, 7), ended, end_id, stop_ids))
    )
    groups = Group(put(group), put(verified), put(first), put(legal) if masked else None)
    flags = torch.tensor(flags, dtype=torch.int32, device=device)
    return table, groups, put(chosen), flags


def plainly(table, groups, chosen, flags, cap):
    """What each row generates, token by token: {row: (verified, accepted, flag, ids)}."""
    found = {}
    for place, row in enumerate(groups.row.tolist()):
        count, over = int(groups.verified[place]), bool(table.ended[row])
        if groups.legal is not None:
            over = over or int(groups.legal[row]) < 0
            count = min(count, max(int(groups.legal[row]), 0))
        ids, flag, right, length = [], 0, 0, int(table.length[row])
        while not over:
            sample, position = int(groups.first[place]) + len(ids), length + len(ids)
            token, flag = int(chosen[sample]), int(flags[sample])
            if token < 0:
                break
            matches = right < count and token == int(table.tokens[row, position])
            right += matches
            ids.append(token)
            flag = FLAG_LIMIT * (position + 1 >= int(table.limit[row]))
            if token == int(table.end_id[row]):
                flag += FLAG_END
            elif token in table.stop_ids[row].tolist():
                flag += FLAG_STOP_ID
            if flag or not matches:
                break
        if row:
            found[row] = (count, 0 if over else right, flag, ids)
    return found


@pytest.mark.parametrize("cap", [0, 1, 3, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_grow_by_what_a_loop_over_tokens_gives(cap, masked):
    seen = set()
    for seed in range(60):
        given = step(seed, cap, masked=masked)
        wanted = plainly(*given, cap)
        table, before = given[0], [tensor.clone() for tensor in given[0]]
        found = conclude.reference(*given, cap=cap)
        for place, row in enumerate(given[1].row.tolist()):
            if not row:
                assert found.packed[place].tolist()[3:] == [-1] * (cap + 1)
                continue
            count, right, flag, ids = wanted[row]
            filled = ids + [-1] * (cap + 1 - len(ids))
            assert found.packed[place].tolist() == [count, right, flag, *filled]
            length = int(before[1][row])
            assert int(table.length[row]) == length + len(ids)
            assert table.tokens[row, length : length + len(ids)].tolist() == ids
            assert bool(table.ended[row]) is (bool(before[4][row]) or flag > 0)
            assert int(table.drafts[row]) == 0
            used = found.index[place, : count + 1] - given[1].first[place]
            assert used.tolist() == list(range(count + 1))
            seen.add((right, flag))
        others = sorted(set(range(1, 12)) - set(given[1].row.tolist()))
        for now, then in zip(table, before, strict=True):
            assert torch.equal(now[others], then[others])
    assert len({right for right, _ in seen}) >= min(cap, 3) + 1
    assert {flag for _, flag in seen} >= {0, FLAG_END, FLAG_STOP_ID, FLAG_LIMIT, FLAG_NAN}
