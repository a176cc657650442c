from hypothesis import given
from hypothesis import strategies as st

from deepinfer.scheduler.limits import PASSED_OVER_LIMIT
from deepinfer.scheduler.queue import WaitingQueue


class CountingQueue:
    """The queue by its definition: a list, and a counter of passings in every entry."""

    def __init__(self):
        self.entries, self.stamp = [], 0

    def push(self, name, priority, resumed):
        self.entries.append([name, priority, self.stamp, resumed, 0])
        self.stamp += 1

    def order(self):
        def key(entry):
            _, priority, stamp, resumed, passed = entry
            if passed >= PASSED_OVER_LIMIT:
                return (0, 0, 0, stamp)
            return (1, priority, not resumed, -stamp if resumed else stamp)

        return [entry[0] for entry in sorted(self.entries, key=key)]

    def admit(self, names):
        latest = max(entry[2] for entry in self.entries if entry[0] in names)
        self.entries = [entry for entry in self.entries if entry[0] not in names]
        for entry in self.entries:
            entry[4] += latest > entry[2]


moves = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 2), st.booleans()),
    # Rounds of one arrival at the front and one admission: what makes the others old.
    st.tuples(st.just("rounds"), st.integers(1, 70), st.integers(-1, 1)),
    st.tuples(st.just("admit"), st.integers(0, 9), st.integers(1, 3)),
    st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
)


@given(st.lists(moves, max_size=25))
def test_order_and_age_are_those_of_a_counter_in_every_entry(moves):
    queue, model, names = WaitingQueue(), CountingQueue(), iter(range(100_000))

    def push(priority, resumed):
        name = str(next(names))
        queue.push(name, priority, resumed=resumed)
        model.push(name, priority, resumed)

    def admit(chosen):
        queue.admitted(max(queue.remove(name).stamp for name in chosen))
        model.admit(chosen)

    for kind, first, second in moves:
        if kind == "push":
            push(first, second)
        elif kind == "rounds":
            for _ in range(first):
                push(second, False)
                admit([model.order()[0]])
        elif kind == "admit" and model.entries:
            order = model.order()
            admit({order[(first + i) % len(order)] for i in range(second)})
        elif kind == "remove" and model.entries:
            gone = model.entries.pop(first % len(model.entries))
            assert queue.remove(gone[0]).request_id == gone[0]
        assert [waiting.request_id for waiting in queue.order()] == model.order()
        aged = [entry[0] for entry in model.entries if entry[4] >= PASSED_OVER_LIMIT]
        assert {w.request_id for w in queue.order() if queue.aged(w)} == set(aged)
        assert len(queue) == len(model.entries)
