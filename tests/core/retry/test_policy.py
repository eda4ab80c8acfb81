"""Policies as people write them: defaults, echo, and everything that is refused (C049, C057, C073)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import timedelta

import pytest

from ostinato.core.instants import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from ostinato.core.retry.policy import (
    DEFAULT_POLICY,
    RetryPolicy,
    RetryRule,
    effective_policy,
    policy_notes,
    policy_to_dict,
    validate_policy,
)
from ostinato.errors import UserError


class Rejected(Exception):
    """An exception of the user's."""


def test_where_nothing_is_said_the_default_holds() -> None:
    validate_policy(DEFAULT_POLICY, field="retry")
    assert policy_to_dict(DEFAULT_POLICY) == {
        "backoff": "exponential",
        "interval": "5s",
        "multiplier": 2,
        "max_interval": "10m",
        "jitter": 0.1,
        "max_retry": 3,
        "max_lost": 3,
        "window": "none",
        "retry_on": [],
        "no_retry_on": ["permanent"],
        "rules": [],
        "budget": "none",
    }


def test_an_empty_block_is_explicit_no_jitter_no_cap() -> None:
    assert effective_policy({}) == RetryPolicy()
    assert policy_to_dict(RetryPolicy()) == {
        **policy_to_dict(DEFAULT_POLICY),
        "max_interval": "none",
        "jitter": "none",
    }


SET = {"max_retry": 5, "interval": "30s", "multiplier": 3, "window": "1h"}
UNSET = {"max_retry": 3, "interval": "5s", "multiplier": 2, "window": "none"}


@pytest.mark.parametrize("said", list(itertools.product([True, False], repeat=4)))
def test_c057_each_of_the_16_combinations_is_what_its_echo_says(said: tuple[bool, ...]) -> None:
    names = [name for name, is_said in zip(SET, said, strict=True) if is_said]
    policy = effective_policy({name: SET[name] for name in names})
    echo = policy_to_dict(policy)
    assert {name: echo[name] for name in SET} == {**UNSET, **{name: SET[name] for name in names}}
    assert effective_policy(echo) == policy


ROUND_TRIPS: list[Mapping[str, object]] = [
    {},
    {"backoff": "fixed", "interval": "30s"},
    {"backoff": "linear", "interval": "1m30s", "max_interval": "5m", "jitter": "equal"},
    {"backoff": "delays", "delays": ["1s", "0s", "1h"], "jitter": "10%"},
    {"jitter": "decorrelated", "window": "0s", "max_retry": 0, "max_lost": 0, "interval": "0s"},
    {"multiplier": 1.5, "no_retry_on": [], "retry_on": ["transient", "HTTP_5*", "app.Rejected"]},
    {
        "retry_on": [],
        "rules": [
            {"match": ["HTTP_429"], "action": "retry", "backoff": "delays", "delays": ["1m"], "max_retry": 1},
            {"match": ["HTTP_4*"], "action": "fail"},
            {"match": ["OSError"], "action": "retry", "multiplier": 3, "interval": "1s", "jitter": 0.5},
            {"match": ["Oops"], "action": "retry", "backoff": "fixed", "max_interval": "2s"},
        ],
    },
]


@pytest.mark.parametrize("partial", ROUND_TRIPS)
def test_an_echo_is_read_back_as_the_same_policy(partial: Mapping[str, object]) -> None:
    policy = effective_policy(partial)
    assert effective_policy(policy_to_dict(policy)) == policy


def test_null_is_unset_and_zero_is_zero() -> None:
    policy = effective_policy(
        {"interval": None, "window": None, "max_retry": 0, "jitter": 0, "max_interval": 0}
    )
    assert policy.interval_us == 5 * SECOND
    assert policy.window_us is None
    assert policy.max_retry == 0
    assert (policy.jitter, policy.jitter_factor) == ("none", 0.0)
    assert policy.max_interval_us == 0
    assert effective_policy({"window": 0}).window_us == 0


def test_durations_may_be_numbers_and_timedeltas_for_the_sdk() -> None:
    policy = effective_policy({"interval": 0.5, "max_interval": timedelta(minutes=1), "window": 3600})
    assert (policy.interval_us, policy.max_interval_us, policy.window_us) == (500 * MILLISECOND, MINUTE, HOUR)


@pytest.mark.parametrize(
    ("said", "factor"), [("10%", 0.1), ("±20 %", 0.2), ("0.5", 0.5), (0.25, 0.25), (1, 1.0)]
)
def test_jitter_may_be_a_fraction_or_a_percentage(said: object, factor: float) -> None:
    policy = effective_policy({"jitter": said})
    assert (policy.jitter, policy.jitter_factor) == ("proportional", factor)


def test_exception_classes_stand_for_their_names() -> None:
    policy = effective_policy({"retry_on": [OSError, Rejected], "no_retry_on": [ConnectionRefusedError]})
    assert policy.retry_on == ("OSError", f"{__name__}.Rejected")
    assert policy.no_retry_on == ("ConnectionRefusedError",)


def test_a_list_of_delays_sets_the_number_of_retries() -> None:
    assert effective_policy({"backoff": "delays", "delays": ["1s"] * 5}).max_retry == 5
    assert effective_policy({"backoff": "delays", "delays": ["1s"] * 5, "max_retry": 0}).max_retry == 0


def test_what_is_not_retried_depends_on_what_is_said() -> None:
    assert effective_policy({}).no_retry_on == ("permanent",)
    assert effective_policy({"retry_on": []}).no_retry_on == ("permanent",)
    # A list of what to retry may name a permanent failure; a task's own Permanent still counts.
    assert effective_policy({"retry_on": ["HTTP_404"]}).no_retry_on == ("ostinato.Permanent",)
    assert effective_policy({"no_retry_on": []}).no_retry_on == ()
    for named in ("permanent", "PERMANENT", "ostinato.Permanent", "Permanent", "*"):
        assert effective_policy({"retry_on": ["TIMEOUT", named]}).no_retry_on == ()


@pytest.mark.parametrize(
    ("partial", "field", "words"),
    [
        ({"max_retries": 3}, "max_retries", "did you mean max_retry?"),
        ({"colour": 3}, "colour", "known are backoff"),
        ({"backoff": "quadratic"}, "backoff", "use one of fixed, linear, exponential, delays"),
        ({"backoff": 3}, "backoff", "not a word"),
        ({"interval": "400d"}, "interval", "between 0s and 365d, not 400d"),
        ({"interval": "5 minuets"}, "interval", "not a duration"),
        ({"interval": "-5s"}, "interval", "not a duration"),
        ({"interval": -5}, "interval", "negative"),
        ({"interval": True}, "interval", "not a duration"),
        ({"interval": []}, "interval", "not a duration"),
        ({"interval": "none"}, "interval", "not a duration"),
        ({"max_interval": "366d"}, "max_interval", "between 0s and 365d"),
        ({"multiplier": 0.5}, "multiplier", "at least 1"),
        ({"multiplier": 0}, "multiplier", "at least 1"),
        ({"multiplier": float("nan")}, "multiplier", "not a number"),
        ({"multiplier": "2"}, "multiplier", "not a number"),
        ({"backoff": "fixed", "multiplier": 2}, "multiplier", "no meaning with backoff fixed"),
        ({"backoff": "linear", "delays": ["1s"]}, "delays", "no meaning with backoff linear"),
        ({"delays": ["1s"]}, "delays", "write backoff: delays"),
        ({"backoff": "delays", "interval": "1s", "delays": ["1s"]}, "interval", "no meaning"),
        ({"backoff": "delays"}, "delays", "1 to 1000 delays"),
        ({"backoff": "delays", "delays": []}, "delays", "1 to 1000 delays"),
        ({"backoff": "delays", "delays": "1s"}, "delays", "not a list"),
        ({"backoff": "delays", "delays": ["1s", "400d"]}, "delays[1]", "between 0s and 365d"),
        ({"jitter": "ful"}, "jitter", "is no jitter"),
        ({"jitter": 1.5}, "jitter", "at most 1"),
        ({"jitter": "150%"}, "jitter", "at most 1"),
        ({"jitter": -0.1}, "jitter", "more than 0"),
        ({"jitter": True}, "jitter", "is no jitter"),
        ({"jitter": "proportional"}, "jitter", "more than 0"),
        (
            {"backoff": "delays", "delays": ["1s"], "jitter": "decorrelated"},
            "jitter",
            "draws from the interval",
        ),
        ({"max_retry": -1}, "max_retry", "between 0 and 1000000, not -1"),
        ({"max_retry": 10**9}, "max_retry", "between 0 and 1000000"),
        ({"max_retry": "none"}, "max_retry", "not a whole number"),
        ({"max_retry": 1.5}, "max_retry", "not a whole number"),
        ({"max_retry": True}, "max_retry", "not a whole number"),
        ({"max_lost": -1}, "max_lost", "between 0 and"),
        ({"window": "soon"}, "window", "not a duration"),
        ({"window": -1}, "window", "negative"),
        ({"retry_on": "HTTP_5*"}, "retry_on", "not a list"),
        ({"retry_on": ["HTTP_5xx"]}, "retry_on[0]", "HTTP_ and a number"),
        ({"retry_on": ["transient", 503]}, "retry_on[1]", "not a word"),
        ({"retry_on": ["cancelled"]}, "retry_on[0]", "never retried"),
        ({"retry_on": ["WORKER_LOST"]}, "retry_on[0]", "use max_lost"),
        ({"no_retry_on": ["A"] * 101}, "no_retry_on", "at most 100"),
        ({"rules": [{"match": ["A"]}]}, "rules[0].action", "is missing"),
        ({"rules": [{"match": ["A"], "action": "degrade"}]}, "rules[0].action", "use retry or fail"),
        ({"rules": [{"match": [], "action": "fail"}]}, "rules[0].match", "names no failure"),
        ({"rules": [{"action": "fail"}]}, "rules[0].match", "names no failure"),
        ({"rules": [{"match": ["a"], "action": "fail"}]}, "rules[0].match[0]", "not a category"),
        ({"rules": [{"match": ["A"], "action": "fail", "interval": "1s"}]}, "rules[0].action", "no delays"),
        (
            {"rules": [{"match": ["A"], "action": "retry", "max_retry": 4}]},
            "rules[0].max_retry",
            "max_retry 3",
        ),
        (
            {"rules": [{"match": ["A"], "action": "retry", "multiplier": 0}]},
            "rules[0].multiplier",
            "at least",
        ),
        ({"rules": [{"match": ["A"], "action": "retry", "delays": ["1s"]}]}, "rules[0].delays", "no meaning"),
        ({"rules": [{"match": ["A"], "action": "retry", "window": "1s"}]}, "rules[0].window", "not a field"),
        (
            {"rules": [{"match": ["A"], "action": "retry", "max_interval": "none"}]},
            "rules[0].max_interval",
            "cap",
        ),
        ({"rules": [{"match": ["lost"], "action": "retry"}]}, "rules[0].match[0]", "use max_lost"),
        ({"rules": ["A"]}, "rules[0]", "not a block"),
        (
            {
                "rules": [
                    {"match": ["HTTP_*"], "action": "fail"},
                    {"match": ["B", "HTTP_5*"], "action": "retry"},
                ]
            },
            "rules[1].match[1]",
            "rules[0] matches it first",
        ),
        (
            {"backoff": "fixed", "rules": [{"match": ["A"], "action": "retry", "multiplier": 2}]},
            "rules[0].multiplier",
            "no meaning with backoff fixed",
        ),
        (
            {
                "backoff": "delays",
                "delays": ["1s"],
                "rules": [{"match": ["A"], "action": "retry", "interval": "2s"}],
            },
            "rules[0].interval",
            "no meaning with backoff delays",
        ),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused_with_its_field(
    partial: Mapping[str, object], field: str, words: str
) -> None:
    with pytest.raises(UserError) as refused:
        effective_policy(partial, field="tasks[2].retry")
    assert refused.value.code in ("INVALID_POLICY", "INVALID_DURATION")
    assert refused.value.field == f"tasks[2].retry.{field}"
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("retry_on", "no_retry_on"),
    [
        ("ConnectionRefusedError", "OSError"),
        ("HTTP_503", "HTTP_5*"),
        ("HTTP_404", "permanent"),
        ("app.Rejected", "Rejected"),
        ("resource", "resource"),
    ],
)
def test_c073_a_retry_that_no_retry_on_wholly_covers_is_refused(retry_on: str, no_retry_on: str) -> None:
    with pytest.raises(UserError) as refused:
        effective_policy({"retry_on": ["TIMEOUT", retry_on], "no_retry_on": [no_retry_on]})
    assert refused.value.field == "retry.retry_on[1]"
    assert f"because {no_retry_on} is on no_retry_on, which wins" in refused.value.message


def test_a_block_must_be_a_block() -> None:
    with pytest.raises(UserError, match="not a block"):
        effective_policy(["fixed"])  # type: ignore[arg-type]  # what YAML may hold


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (RetryPolicy(backoff="cubic"), "backoff"),  # type: ignore[arg-type]  # decoded data may hold it
        (RetryPolicy(interval_us=-1), "interval"),
        (RetryPolicy(interval_us=366 * DAY), "interval"),
        (RetryPolicy(max_interval_us=-1), "max_interval"),
        (RetryPolicy(multiplier=float("inf")), "multiplier"),
        (RetryPolicy(multiplier=float("nan")), "multiplier"),
        (RetryPolicy(delays_us=(1,)), "delays"),
        (RetryPolicy(backoff="delays", delays_us=(-1,)), "delays[0]"),
        (RetryPolicy(jitter="full", jitter_factor=0.1), "jitter"),
        (RetryPolicy(jitter="proportional", jitter_factor=float("nan")), "jitter"),
        (RetryPolicy(jitter="some"), "jitter"),  # type: ignore[arg-type]  # decoded data may hold it
        (RetryPolicy(max_retry=-1), "max_retry"),
        (RetryPolicy(max_lost=-1), "max_lost"),
        (RetryPolicy(window_us=-1), "window"),
        (RetryPolicy(window_us=10**18), "window"),
        (RetryPolicy(retry_on=("",)), "retry_on[0]"),
        (RetryPolicy(no_retry_on=("x y",)), "no_retry_on[0]"),
        (RetryPolicy(rules=(RetryRule(match=("A",)),) * 101), "rules"),
        (RetryPolicy(rules=(RetryRule(match=("A",), max_retry=-1),)), "rules[0].max_retry"),
        (RetryPolicy(rules=(RetryRule(match=("A",), jitter_factor=0.5),)), "rules[0].jitter"),
    ],
)
def test_validate_policy_refuses_data_that_no_one_wrote(policy: RetryPolicy, field: str) -> None:
    with pytest.raises(UserError) as refused:
        validate_policy(policy, field="retry")
    assert (refused.value.code, refused.value.field) == ("INVALID_POLICY", f"retry.{field}")


def test_c049_a_policy_whose_delays_reach_the_ceiling_says_so() -> None:
    policy = effective_policy({"interval": "300s", "max_retry": 1000})
    assert policy_notes(policy) == (
        "from retry 18 on every delay is 365d, the longest there is; set max_interval",
    )
    assert policy_notes(effective_policy({"interval": "300s", "max_retry": 17})) == ()
    assert policy_notes(effective_policy({"max_interval": "1h", "max_retry": 1000})) == ()
    assert policy_notes(DEFAULT_POLICY) == ()


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("retry_on", "HTTP_5*", '["HTTP_5*"]'),
        ("retry_on", "HTTP_5*, TIMEOUT", '["HTTP_5*", "TIMEOUT"]'),
        ("no_retry_on", ConnectionError, "[ConnectionError]"),
        ("delays", 5, "[5]"),
        ("rules", {"match": ["TIMEOUT"]}, "[{'match': ['TIMEOUT']}]"),
    ],
)
def test_a_single_entry_in_place_of_a_list_names_the_field_and_shows_the_list(
    field: str, value: object, hint: str
) -> None:
    said = {"backoff": "delays"} if field == "delays" else {}
    with pytest.raises(UserError, match="is not a list") as caught:
        effective_policy({**said, field: value})
    assert (caught.value.code, caught.value.field) == ("INVALID_POLICY", f"retry.{field}")
    assert caught.value.hint == f"write it in brackets: {hint}"
