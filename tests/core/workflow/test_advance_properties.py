"""What holds of every run: any graph, any outcomes, endings in any order and grouping, crashes between
commits.

`support.workflow_runs` checks each commit by itself: nothing begins before its upstream has ended, every
node ends once, nothing is made twice, nothing runs beside a compensation.
"""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.workflow_runs import Run, RunState, node, workflow

from ostinato.core.states import State
from ostinato.core.workflow.definition import Node, WorkflowDefinition
from ostinato.core.workflow.rules import RULES, Decision, Ends, counted_as, decide_rule
from ostinato.core.workflow.states import TERMINAL_NODE_STATES, TERMINAL_RUN_STATES, NodeState
from ostinato.core.workflow.step import UNFINISHED_FIRST

EXAMPLES = settings(max_examples=150, deadline=None)
SEEDS = st.integers(0, 2**32)


def _definition(rng: Random, *, rollback: bool) -> WorkflowDefinition:
    nodes: list[Node] = []
    for index in range(rng.randint(1, 9)):
        before = [one.name for one in nodes]
        after = rng.sample(before, min(len(before), rng.choice([0, 1, 1, 2, 3])))
        rules = [*RULES] if after else ["all_success", "all_done", "always"]
        rule = rng.choice(rules) if rng.random() < 0.6 else "all_success"
        over: object = None
        if rng.random() < 0.4:
            over = list(range(rng.choice([0, 1, 2, 4])))
            mapped = [name for name in after if rule != "always"]
            if mapped and rng.random() < 0.6:
                over = {"$result": rng.choice(mapped), "default": [1, 2]}
        strategies = ["fail", "skip", "rollback"] if rollback else ["fail", "skip"]
        nodes.append(
            node(
                f"n{index}",
                *after,
                rule=rule,
                over=over,
                strategy=rng.choice(strategies),
                undo="undo" if rng.random() < 0.6 else "",
                unfinished=rng.random() < 0.5,
                payload={"seen": {"$result": after[0]}} if after and rule != "always" else None,
                **({"workflow": "sub"} if rng.random() < 0.1 else {}),
            )
        )
    return workflow(*nodes)


class _World:
    """Workers and crashes by one random source; what an attempt comes to depends on the instance alone."""

    def __init__(self, run: Run, rng: Random, *, outcomes: int, crashes: bool) -> None:
        self.run = run
        self.rng = rng
        self.outcomes = outcomes
        self.crashes = crashes

    def play(self) -> None:
        for _ in range(5_000):
            if self.run.row.finished_us is not None:
                return
            if not (self._work() if self.rng.random() < 0.5 else self._step()) and not self._step():
                assert self._work(), f"the run hangs: {self.run.states()}"
        raise AssertionError("the run does not end")

    def _work(self) -> bool:
        """A worker starts something, or ends something."""
        running, startable = self.run.running(), self.run.startable()
        if running and (not startable or self.rng.random() < 0.5):
            instance = self.rng.choice(sorted(running, key=lambda one: one.id))
            state = self._outcome(instance.id, instance.role)
            if instance.cancel_asked and self.rng.random() < 0.7:
                state = State.CANCELLED
            self.run.end_instance(instance, state, [1, 2] if instance.item % 2 else [])
            return True
        if startable:
            self.run.start_instance(self.rng.choice(sorted(startable, key=lambda one: one.id)))
            return True
        return False

    def _outcome(self, instance_id: str, role: str) -> State:
        draw = Random(f"{self.outcomes}/{instance_id}").random()
        if role == "compensation":
            return State.FAILED if draw < 0.1 else State.SUCCESS
        return State.SUCCESS if draw < 0.65 else State.FAILED if draw < 0.9 else State.SKIPPED

    def _step(self) -> bool:
        if not self.run.has_work():
            return False
        grouping = self.rng.choice([1, 2, 500])
        effects = self.run.planned(
            ended_max=grouping, ended_order=self.rng.shuffle, rounds=self.rng.choice([1, 2, 50])
        )
        if effects.run is None:
            effects = self.run.planned()
        if effects.run is None:
            return False
        if self.crashes and self.rng.random() < 0.3:
            return True  # before the commit: all that it knew is gone
        assert self.run.commit(effects)
        if self.crashes and self.rng.random() < 0.3:
            assert not self.run.commit(effects)  # its answer was lost, and it is sent again
        return True


def _played(definition: WorkflowDefinition, seed: int, *, outcomes: int, crashes: bool = True) -> Run:
    run = Run(definition)
    _World(run, Random(seed), outcomes=outcomes, crashes=crashes).play()
    return run


def _check_end(run: Run) -> None:
    assert run.row.state in TERMINAL_RUN_STATES
    assert all(row.state in TERMINAL_NODE_STATES for row in run.nodes.values())
    assert (run.row.live_count, run.row.open_count) == (0, 0)
    assert [one.id for one in run.instances.values() if one.is_live or not one.counted] == []
    failing = [name for name, row in run.nodes.items() if _fails(run, name, row.state)]
    if run.row.state is RunState.SUCCESS:
        assert failing == []
    elif run.row.state is RunState.FAILED:
        assert failing != []
        assert run.row.reason


def _fails(run: Run, name: str, state: NodeState) -> bool:
    if state is NodeState.FAILED:
        return run.graph.nodes[name].strategy != "skip"
    return state in (NodeState.UPSTREAM_FAILED, NodeState.CANCELLED)


def _check_rules(run: Run) -> None:
    """Each node ran, or did not, as its rule says of how its upstream has ended in the end."""
    for name, row in run.nodes.items():
        spec = run.graph.nodes[name]
        counts = dict.fromkeys(Ends.__struct_fields__, 0)
        for before in spec.after:
            excused = run.graph.nodes[before].strategy == "skip"
            counts[counted_as(run.nodes[before].state, excused=excused)] += 1
        ran = any(one.started for one in run.instances.values() if one.node == name and one.role == "step")
        if decide_rule(spec.trigger_rule, Ends(**counts)) is not Decision.RUN:
            assert not ran, f"{name} ran against {spec.trigger_rule}"
            assert row.state in (NodeState.SKIPPED, NodeState.UPSTREAM_FAILED)
        elif row.state is NodeState.UPSTREAM_FAILED:
            assert name in run.graph.maps, f"{name} did not run though {spec.trigger_rule} holds"


@EXAMPLES
@given(SEEDS, SEEDS, SEEDS)
def test_order_grouping_and_crashes_do_not_change_the_end(graph: int, outcomes: int, seed: int) -> None:
    definition = _definition(Random(graph), rollback=False)
    plain = Run(definition)
    _World(plain, Random(0), outcomes=outcomes, crashes=False).play()
    _check_end(plain)
    _check_rules(plain)
    other = _played(definition, seed, outcomes=outcomes)
    _check_end(other)
    assert other.states() == plain.states()
    assert other.row.state is plain.row.state
    for name, row in other.nodes.items():
        counts = ("total", "created", "success", "failed", "skipped", "cancelled")
        assert [getattr(row, count) for count in counts] == [
            getattr(plain.nodes[name], count) for count in counts
        ]
    for instance_id, instance in other.instances.items():
        twin = plain.instances[instance_id]
        assert (instance.state, instance.payload, instance.missing) == (
            twin.state,
            twin.payload,
            twin.missing,
        )


@EXAMPLES
@given(SEEDS, SEEDS, SEEDS)
def test_a_rollback_undoes_in_reverse_order_what_was_done(graph: int, outcomes: int, seed: int) -> None:
    """I10, C153."""
    run = _played(_definition(Random(graph), rollback=True), seed, outcomes=outcomes)
    _check_end(run)
    rolled = run.row.state in (RunState.ROLLED_BACK, RunState.ROLLBACK_FAILED)
    steps = [one for one in run.instances.values() if one.role == "step"]
    undo = {one.id: one for one in run.instances.values() if one.role == "compensation"}
    if not rolled:
        assert undo == {}
        return
    expected = []
    for one in steps:
        spec = run.graph.nodes[one.node].compensate
        finished = one.state is State.SUCCESS
        bad = one.state in (State.FAILED, State.CANCELLED)
        if spec is not None and (finished or (bad and one.started and spec.unfinished)):
            assert one.undo_order is not None
            assert (one.undo_order > UNFINISHED_FIRST) == bad
            expected.append(one)
        else:
            assert one.undo_order is None
    expected.sort(key=lambda one: one.undo_order or 0, reverse=True)
    labels = [run._label(one) for one in expected]
    if run.row.state is RunState.ROLLED_BACK:
        assert run.undone == labels
        assert all(one.state is State.SUCCESS for one in undo.values())
        assert run.alerts == []
    else:
        assert run.undone == labels[: len(run.undone)]
        assert [one.state for one in undo.values()].count(State.SUCCESS) == len(undo) - 1
        assert len(run.alerts) == 1


@EXAMPLES
@given(SEEDS, SEEDS, SEEDS, st.integers(1, 25), st.booleans())
def test_a_person_may_stop_a_run_at_any_moment(
    graph: int, outcomes: int, seed: int, moment: int, roll_back: bool
) -> None:
    run = Run(_definition(Random(graph), rollback=True))
    world = _World(run, Random(seed), outcomes=outcomes, crashes=True)
    for _ in range(moment):
        world._work() or world._step()
    if run.row.state is RunState.RUNNING:
        begun = len(run.begun)
        if roll_back:
            run.roll_back()
        else:
            run.cancel()
        world.play()
        assert len(run.begun) == begun
        ends = {RunState.ROLLED_BACK, RunState.ROLLBACK_FAILED} if roll_back else TERMINAL_RUN_STATES
        assert run.row.state in ends
    else:
        world.play()
    _check_end(run)


@EXAMPLES
@given(SEEDS, SEEDS, SEEDS, SEEDS)
def test_a_resumed_run_ends_as_one_that_never_failed(graph: int, outcomes: int, seed: int, stop: int) -> None:
    """Whatever failed or was cancelled, however often it is resumed: in the end every rule has been kept."""
    rng = Random(stop)
    definition = _definition(rng, rollback=False)
    run = Run(definition)
    world = _World(run, Random(seed), outcomes=outcomes, crashes=True)
    for moment in (rng.randint(1, 20), rng.randint(1, 20), 0):
        for _ in range(moment):
            world._work() or world._step()
        if moment and run.row.state is RunState.RUNNING:
            run.cancel()
        world.play()
        world.outcomes += 1
        _check_end(run)
        if run.row.state is RunState.SUCCESS:
            break
        if moment:
            names = rng.sample(run.graph.order, rng.randint(0, 1))
            if run.row.failed_count or names:
                run.resume(*names)
    if run.row.state is RunState.SUCCESS:
        for name, row in run.nodes.items():
            if row.state is NodeState.SUCCESS:
                assert row.success + row.skipped == row.total == row.created
                current = [run._instance_of(name, item) for item in range(row.total)]
                done = [one for one in current if one is not None and one.state is State.SUCCESS]
                assert len(done) == row.success


def test_rows_travel_as_json() -> None:
    """Stores keep them in columns; nothing in them needs this process."""
    run = _played(_definition(Random(5), rollback=True), 5, outcomes=5)
    for row in [run.row, *run.nodes.values()]:
        assert msgspec.json.decode(msgspec.json.encode(row), type=type(row)) == row
