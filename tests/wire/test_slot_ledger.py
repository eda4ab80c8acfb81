"""Slots of a worker over several streams: promised once, whatever the nodes say and in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ostinato.wire.ledgers import CreditLedger
from ostinato.wire.slot_ledger import SlotLedger

POOLS = st.sampled_from(["process", "async"])
NODES = st.integers(0, 2)


def opened(capacity: dict[str, int], *streams: int) -> SlotLedger:
    ledger = SlotLedger(capacity)
    for stream in streams:
        ledger.open(stream)
    return ledger


def test_a_slot_is_promised_taken_and_free_again() -> None:
    ledger = opened({"process": 2}, 1)
    assert ledger.promise(1, "process", count=5) == 2
    assert ledger.free("process") == 0
    assert ledger.take(1, "process")
    assert (ledger.outstanding(1, "process"), ledger.occupied) == (1, {"process": 1})
    assert ledger.release("process")
    assert ledger.free("process") == 1
    assert ledger.promise(1, "process", count=1) == 1
    assert ledger.granted(1) == {"process": 3}


def test_an_assignment_beyond_the_promises_of_its_own_stream_is_refused() -> None:
    ledger = opened({"process": 2}, 1, 2)
    ledger.promise(1, "process", count=1)
    assert not ledger.take(2, "process")
    assert not ledger.take(1, "gpu")
    assert not ledger.take(3, "process")
    assert ledger.take(1, "process")
    assert not ledger.take(1, "process")


def test_a_release_that_is_repeated_frees_nothing() -> None:
    ledger = opened({"process": 2}, 1)
    assert not ledger.release("process")
    assert not ledger.release("gpu")
    assert ledger.free("process") == 2


def test_what_was_promised_to_a_stream_that_has_ended_is_free_and_what_runs_is_not() -> None:
    ledger = opened({"process": 3}, 1)
    ledger.promise(1, "process", count=3)
    ledger.take(1, "process")
    ledger.close(1)
    ledger.close(1)
    assert ledger.free("process") == 2


def test_a_promise_that_was_given_back_is_free_once() -> None:
    ledger = opened({"process": 3}, 1, 2)
    ledger.promise(1, "process", count=3)
    assert ledger.want(1, "process", count=2)
    assert ledger.wanted(1) == {"process": 2}
    assert ledger.returned(1, {"process": 2})
    assert not ledger.returned(1, {"process": 2})
    assert not ledger.returned(1, {"process": 1})
    assert (ledger.free("process"), ledger.wanted(1)) == (2, {})
    assert ledger.promise(2, "process", count=2) == 2
    assert ledger.free("process") == 0


def test_a_wish_counts_on_from_what_has_come_back() -> None:
    ledger = opened({"process": 4}, 1)
    ledger.promise(1, "process", count=4)
    assert ledger.want(1, "process", count=1)
    assert not ledger.want(1, "process", count=1)
    ledger.returned(1, {"process": 1})
    assert ledger.want(1, "process", count=1)
    assert ledger.wanted(1) == {"process": 2}
    assert not ledger.want(1, "process", count=0)
    assert ledger.wanted(1) == {}


def test_a_node_that_claims_to_have_given_back_more_than_it_had_frees_only_that() -> None:
    ledger = opened({"process": 3}, 1)
    ledger.promise(1, "process", count=2)
    ledger.take(1, "process")
    assert ledger.returned(1, {"process": 99, "gpu": 7})
    assert ledger.free("process") == 2
    assert not ledger.take(1, "process")
    assert not ledger.returned(9, {"process": 1})


def test_too_many_attempts_for_smaller_pools_delay_the_first_promise() -> None:
    ledger = opened({"process": 1}, 1)
    ledger.promise(1, "process", count=1)
    ledger.take(1, "process")
    assert ledger.promise(1, "process", count=1) == 0
    ledger.release("process")
    assert ledger.promise(1, "process", count=1) == 1


def test_places_ahead_are_promised_as_slots_are_and_what_was_promised_outlasts_their_fall() -> None:
    ledger = opened({"process": 2}, 1)
    ledger.set_ahead("process", 3)
    assert ledger.promise(1, "process", count=9) == 5
    for _ in range(3):
        assert ledger.take(1, "process")
    ledger.set_ahead("process", 0)
    assert (ledger.free("process"), ledger.excess("process")) == (0, 3)
    assert ledger.take(1, "process")
    for _ in range(2):
        ledger.release("process")
    assert (ledger.free("process"), ledger.excess("process")) == (0, 1)
    ledger.returned(1, {"process": 1})
    assert (ledger.free("process"), ledger.excess("process")) == (0, 0)
    ledger.release("process")
    assert ledger.promise(1, "process", count=9) == 1


@given(claims=st.lists(st.dictionaries(POOLS, st.integers(-5, 40)), max_size=20))
def test_whatever_a_node_claims_to_have_given_back_no_slot_is_promised_twice(
    claims: list[dict[str, int]],
) -> None:
    capacity = {"process": 3, "async": 5}
    ledger = opened(capacity, 1, 2)
    for claim in claims:
        for pool in capacity:
            ledger.promise(1, pool, count=2)
        ledger.returned(1, claim)
        for pool, slots in capacity.items():
            ledger.promise(2, pool, count=1)
            promised = ledger.outstanding(1, pool) + ledger.outstanding(2, pool)
            assert 0 <= promised <= slots
            assert ledger.outstanding(1, pool) >= 0


class ManyNodes(RuleBasedStateMachine):
    """A worker and three nodes. Streams keep their order but know none among each other; they break at will.

    Acknowledgements are repeated and grants arrive late, and places ahead of the slots come and go.
    """

    capacity = {"process": 3, "async": 5}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotLedger(self.capacity)
        self.running: list[str] = []
        self.ahead = dict.fromkeys(self.capacity, 0)
        #: Promised or taken: never more than this, which falls as those do.
        self.most = dict(self.capacity)
        self.stream_count = 0
        self.streams = [0, 0, 0]
        self.credits = [CreditLedger(), CreditLedger(), CreditLedger()]
        #: What is on its way on each stream: assignments, and counts of credits given back.
        self.to_worker: list[list[str | dict[str, int]]] = [[], [], []]
        for node in range(3):
            self.connect(node)

    @rule(node=NODES)
    def connect(self, node: int) -> None:
        """The stream has broken, and what was on its way there is lost; what runs goes on."""
        self.slots.close(self.streams[node])
        self.stream_count += 1
        self.streams[node] = self.stream_count
        self.slots.open(self.stream_count)
        self.credits[node] = CreditLedger(self.slots.granted(self.stream_count))
        self.to_worker[node] = []

    @rule(pool=POOLS, count=st.integers(0, 6))
    def set_ahead(self, pool: str, count: int) -> None:
        self.slots.set_ahead(pool, count)
        self.ahead[pool] = count

    @rule(node=NODES, pool=POOLS, count=st.integers(1, 5))
    def promise(self, node: int, pool: str, count: int) -> None:
        self.slots.promise(self.streams[node], pool, count=count)

    @rule(node=NODES)
    def report(self, node: int) -> None:
        self.credits[node].update(self.slots.granted(self.streams[node]))
        self.credits[node].want(self.slots.wanted(self.streams[node]))

    @rule(node=NODES, pool=POOLS, count=st.integers(0, 5))
    def want(self, node: int, pool: str, count: int) -> None:
        self.slots.want(self.streams[node], pool, count=count)

    @rule(node=NODES)
    def give_back(self, node: int) -> None:
        self.credits[node].return_wanted()
        self.to_worker[node].append(self.credits[node].returned)

    @rule(node=NODES, pool=POOLS)
    def assign(self, node: int, pool: str) -> None:
        if self.credits[node].available(pool):
            self.credits[node].use(pool)
            self.to_worker[node].append(pool)

    @rule(node=NODES, twice=st.booleans())
    def arrive(self, node: int, twice: bool) -> None:
        if not self.to_worker[node]:
            return
        message = self.to_worker[node].pop(0)
        if isinstance(message, str):
            assert self.slots.take(self.streams[node], message), (
                "an assignment within the credit finds a slot"
            )
            self.running.append(message)
        else:
            self.slots.returned(self.streams[node], message)
            if twice:
                assert not self.slots.returned(self.streams[node], message)

    @rule(number=st.integers(0, 7))
    def end(self, number: int) -> None:
        if self.running:
            assert self.slots.release(self.running.pop(number % len(self.running)))

    @invariant()
    def slots_are_promised_once_over_all_nodes(self) -> None:
        for pool, slots in self.capacity.items():
            taken = self.running.count(pool)
            promised = sum(self.slots.outstanding(stream, pool) for stream in self.streams)
            bound = slots + self.ahead[pool]
            assert promised + taken + self.slots.free(pool) - self.slots.excess(pool) == bound
            # Where the bound has fallen, what was promised before is used up, and nothing new is promised.
            assert promised + taken <= max(bound, self.most[pool])
            self.most[pool] = promised + taken
            usable = sum(credits.available(pool) for credits in self.credits)
            under_way = sum(queue.count(pool) for queue in self.to_worker)
            assert usable + under_way + taken <= promised + taken

    @invariant()
    def no_node_has_more_credit_than_was_promised_to_it(self) -> None:
        for node, stream in enumerate(self.streams):
            for pool in self.capacity:
                usable = self.credits[node].available(pool) + self.to_worker[node].count(pool)
                assert 0 <= usable <= self.slots.outstanding(stream, pool)

    def teardown(self) -> None:
        """Nothing is stranded: once all streams have ended and all attempts too, every slot is free."""
        for stream in self.streams:
            self.slots.close(stream)
        for pool in self.running:
            self.slots.release(pool)
        for pool in self.capacity:
            self.slots.set_ahead(pool, 0)
        assert {pool: self.slots.free(pool) for pool in self.capacity} == self.capacity


TestManyNodes = ManyNodes.TestCase
