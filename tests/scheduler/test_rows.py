import pytest

from deepinfer.scheduler.admission import new_job
from deepinfer.scheduler.policy import AGED_PRIORITY, Candidate
from deepinfer.scheduler.rows import DECODE, DRAINING, RowTable
from deepinfer.step import Prefill
from tests.scheduler.driver import LIMITS, request


def table_of(*lengths):
    table = RowTable(LIMITS)
    for arrival, length in enumerate(lengths):
        table.enter(new_job(request(arrival, [1] * length, 9, priority=3), LIMITS, arrival), [], 0)
    return table


def test_a_victim_loses_what_is_computed_and_not_what_it_knows():
    table = table_of(10, 6)
    table.job(1).planned = 3
    table.job(1).aged = True
    table.append_pages(2, 2)
    table.book(0, 0, [Prefill(2, 0, 6, True)])
    assert table.candidates() == [Candidate(1, AGED_PRIORITY, 3, 0), Candidate(2, 3, 6, 1)]


def test_the_lowest_free_row_is_taken_first():
    table = table_of(1, 1, 1)
    table.free(3)
    table.free(1)
    table.enter(new_job(request(9, [1], 1), LIMITS, 9), [], 0)
    assert table.job(1).request.request_id == "9"
    assert table.released == [3, 1]


def test_a_move_that_is_not_allowed_is_our_own_bug():
    table = table_of(1)
    table.move(1, DRAINING)
    with pytest.raises(AssertionError, match="row 1 moves from state 4 to 2"):
        table.move(1, DECODE)


def test_check_sees_what_does_not_fit_together():
    table = table_of(6, 6)
    assert table.check(-1, -1) == []
    table.job(1).planned = 5
    assert table.check(-1, -1) == ["row 1 may write 5 tokens to 0 pages"]
    table.append_pages(1, 2)
    table.pages[1] = 1
    assert table.check(-1, -1) == ["row 1: columns and request disagree"]
    table.pages[1] = 2
    table.lo[2] = 7
    assert table.check(-1, -1) == ["row 2 has 6 tokens, its bounds are 7 and 6"]
    table.lo[2] = 6
    table.job(2).pages = [1]
    assert "page 1 has 2 owners, 1 are counted" in table.check(-1, -1)
