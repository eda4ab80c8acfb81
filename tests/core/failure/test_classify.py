"""Exceptions become failures, whatever the exception does (C067, C069)."""

from __future__ import annotations

import errno
import socket
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from ostinato.core.failure.classify import class_names, failure_from_exception
from ostinato.core.failure.failure import CHAIN_LENGTH_MAX, Failure
from ostinato.core.failure.signals import Permanent, RetryLater, TaskError
from ostinato.core.instants import MINUTE, SECOND, from_datetime
from ostinato.core.plain import from_plain
from ostinato.errors import UserError


class Rejected(Exception):
    """An exception of the user's."""


class Narrow(Rejected):
    """A subclass of it."""


class CodedError(Exception):
    ostinato_code = "CARD_REFUSED"
    ostinato_category = "permanent"


REJECTED = f"{__name__}.Rejected"


def raised(error: BaseException, *, cause: BaseException | None = None) -> Failure:
    try:
        raise error from cause
    except BaseException as caught:  # noqa: BLE001 - whatever a task may raise
        return failure_from_exception(caught)


def test_an_ordinary_exception_keeps_class_ancestors_message_and_traceback() -> None:
    failure = raised(Narrow("no funds"))
    assert (failure.code, failure.category) == ("PYTHON_ERROR", "transient")
    assert failure.message == "Narrow: no funds"
    assert failure.classes == (f"{__name__}.Narrow", REJECTED, "Exception")
    assert [cause.class_name for cause in failure.chain] == [f"{__name__}.Narrow"]
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert failure.traceback.rstrip().endswith("Narrow: no funds")


def test_an_exception_without_words_is_named_by_its_class() -> None:
    assert raised(Rejected()).message == "Rejected"


def test_builtin_classes_stand_without_their_module() -> None:
    assert class_names(ConnectionRefusedError) == (
        "ConnectionRefusedError",
        "ConnectionError",
        "OSError",
        "Exception",
    )


@pytest.mark.parametrize(
    ("error", "code", "category"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "ECONNREFUSED", "transient"),
        (ConnectionRefusedError("raised by hand"), "ECONNREFUSED", "transient"),
        (OSError(errno.ENOSPC, "full"), "ENOSPC", "resource"),
        (OSError("no number"), "PYTHON_ERROR", "transient"),
        (OSError(999_999, "no such number"), "PYTHON_ERROR", "transient"),
        (TimeoutError(), "ETIMEDOUT", "transient"),
        (PermissionError(errno.EACCES, "no"), "EACCES", "permanent"),
        (FileNotFoundError(errno.ENOENT, "no"), "ENOENT", "transient"),
        (MemoryError(), "OOM", "resource"),
        # The resolver and TLS put numbers of their own into errno: 8 and 1 are ENOEXEC and EPERM.
        (socket.gaierror(8, "unknown host"), "DNS", "transient"),
        (ssl.SSLError(1, "broken"), "TLS", "transient"),
        (ssl.SSLCertVerificationError(1, "bad certificate"), "TLS_CERTIFICATE", "permanent"),
        (CodedError("x"), "CARD_REFUSED", "permanent"),
        (Permanent("x"), "PERMANENT", "permanent"),
        (Permanent("x", code="CARD_REFUSED"), "CARD_REFUSED", "permanent"),
        (RetryLater("x"), "RETRY_LATER", "transient"),
        (TaskError("x", code="DISK", category="resource"), "DISK", "resource"),
        (SystemExit(3), "EXIT_3", "transient"),
        (SystemExit("text"), "EXIT_1", "transient"),
        (SystemExit(None), "EXIT_0", "transient"),
        (KeyboardInterrupt(), "PYTHON_ERROR", "transient"),
    ],
)
def test_what_an_exception_says_of_itself_becomes_the_code(
    error: BaseException, code: str, category: str
) -> None:
    failure = raised(error)
    assert (failure.code, failure.category) == (code, category)


def test_c067_an_explicit_cause_gives_the_code_and_stands_in_the_chain() -> None:
    failure = raised(RuntimeError("wrapped"), cause=Permanent("no", code="CARD_REFUSED"))
    assert (failure.code, failure.category) == ("CARD_REFUSED", "permanent")
    assert [cause.class_name for cause in failure.chain] == ["RuntimeError", "ostinato.Permanent"]
    assert failure.message == "RuntimeError: wrapped"


def test_the_outermost_that_says_something_gives_the_code() -> None:
    inner = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    inner.__cause__ = PermissionError(errno.EACCES, "no")
    assert raised(RuntimeError("wrapped"), cause=inner).code == "ECONNREFUSED"


def test_an_implicit_context_is_shown_but_gives_no_code() -> None:
    try:
        try:
            raise PermissionError(errno.EACCES, "no")
        except PermissionError:
            raise RuntimeError("while handling it")  # noqa: B904 - the implicit context is what is tested
    except RuntimeError as caught:
        failure = failure_from_exception(caught)
    assert failure.code == "PYTHON_ERROR"
    assert [cause.class_name for cause in failure.chain] == ["RuntimeError", "PermissionError"]


def test_a_suppressed_context_is_not_followed() -> None:
    try:
        try:
            raise Rejected("hidden")
        except Rejected:
            raise RuntimeError("instead") from None
    except RuntimeError as caught:
        failure = failure_from_exception(caught)
    assert [cause.class_name for cause in failure.chain] == ["RuntimeError"]


def test_c067_members_of_a_group_stand_in_the_chain_and_a_permanent_one_decides() -> None:
    wrapped = RuntimeError("r")
    wrapped.__cause__ = Rejected("deep")
    inner = ExceptionGroup("in", [wrapped, Permanent("p")])
    failure = raised(ExceptionGroup("out", [TimeoutError(), inner]))
    assert [cause.class_name for cause in failure.chain] == [
        "ExceptionGroup",
        "TimeoutError",
        "ExceptionGroup",
        "RuntimeError",
        REJECTED,
        "ostinato.Permanent",
    ]
    assert (failure.code, failure.category) == ("PERMANENT", "permanent")


def test_retry_later_carries_its_delay_or_instant_through_a_group() -> None:
    delayed = raised(ExceptionGroup("g", [RetryLater(after="5m")]))
    assert (delayed.code, delayed.retry_after_us, delayed.retry_at_us) == ("RETRY_LATER", 5 * MINUTE, None)
    when = datetime(2030, 1, 1, tzinfo=UTC)
    dated = raised(RetryLater(at=when))
    assert (dated.retry_after_us, dated.retry_at_us) == (None, from_datetime(when))
    assert raised(RetryLater("busy")).retry_after_us is None


def test_retry_later_after_zero_is_zero_not_unset() -> None:
    assert raised(RetryLater(after=0)).retry_after_us == 0
    assert raised(RetryLater(after=timedelta(seconds=2))).retry_after_us == 2 * SECOND


def test_signals_refuse_what_they_cannot_carry() -> None:
    with pytest.raises(UserError, match="not both") as both:
        RetryLater(after=1, at=datetime(2030, 1, 1, tzinfo=UTC))
    assert both.value.field == "at"
    with pytest.raises(UserError, match="negative"):
        RetryLater(after=-1)
    with pytest.raises(UserError, match="no UTC offset"):
        RetryLater(at=datetime(2030, 1, 1))  # noqa: DTZ001 - a naive instant is what is refused
    with pytest.raises(UserError, match="not a failure code") as code:
        Permanent("x", code="card refused")
    assert code.value.field == "code"
    with pytest.raises(UserError, match="may give"):
        TaskError("x", category="lost")


def test_a_task_can_neither_call_itself_lost_nor_cancelled() -> None:
    error = TaskError("x")
    error.category = "lost"
    assert raised(error).category == "transient"


def test_the_signals_name_the_module_that_users_import() -> None:
    assert class_names(RetryLater)[:2] == ("ostinato.RetryLater", "ostinato.TaskError")


class NeedsArguments(Exception):
    def __init__(self, left: object, right: object) -> None:
        super().__init__(left)
        self.right = right


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")

    def __repr__(self) -> str:
        raise ValueError("nor this")


class Unreadable(Exception):
    @property
    def ostinato_code(self) -> str:
        raise RuntimeError("a trap")


class OddText(str):
    def __len__(self) -> int:
        raise RuntimeError("no length")


class OddlyWorded(Exception):
    def __str__(self) -> str:
        return OddText("odd")


def test_c069_a_str_that_raises_is_said_so() -> None:
    failure = raised(Unspeakable())
    assert failure.message == "Unspeakable: <its __str__ raised ValueError>"
    assert "Unspeakable" in failure.traceback


def test_c069_exceptions_with_traps_still_become_failures() -> None:
    with socket.socket() as held:
        assert raised(NeedsArguments(held, 1)).message.startswith("NeedsArguments: <socket")
    assert raised(Unreadable("u")).message == "Unreadable: u"
    assert raised(OddlyWorded()).message.startswith("OddlyWorded")


def test_c069_a_huge_message_is_cut_with_a_notice() -> None:
    failure = raised(ValueError("m" * 50_000_000))
    assert failure.message.startswith("ValueError: mmm")
    assert "[cut, 50000012 characters in all]" in failure.message
    assert len(failure.message) <= 8192
    assert len(failure.traceback) <= 65536


def test_c069_c157_surrogates_and_nul_are_replaced_visibly() -> None:
    failure = raised(ValueError("x\0y\ud800"))
    assert failure.message == "ValueError: x␀y\ufffd"
    assert "\0" not in failure.traceback
    failure.traceback.encode("utf-8")


def test_c069_a_chain_that_bites_its_tail_ends() -> None:
    first, second = Rejected("a"), Narrow("b")
    first.__cause__, second.__cause__ = second, first
    failure = failure_from_exception(first)
    assert [cause.class_name for cause in failure.chain] == [REJECTED, f"{__name__}.Narrow"]
    first.__cause__ = first
    assert len(failure_from_exception(first).chain) == 1


def test_long_chains_and_wide_groups_are_cut() -> None:
    error: Exception = ValueError("innermost")
    for number in range(200):
        outer = RuntimeError(str(number))
        outer.__cause__ = error
        error = outer
    assert len(failure_from_exception(error).chain) == CHAIN_LENGTH_MAX
    wide = ExceptionGroup("wide", [ValueError(str(number)) for number in range(1000)])
    assert len(failure_from_exception(wide).chain) == CHAIN_LENGTH_MAX


def test_an_own_code_that_is_none_is_mentioned() -> None:
    error = Rejected("x")
    error.ostinato_code = "not a code"  # type: ignore[attr-defined]  # users set it on any exception
    failure = failure_from_exception(error)
    assert failure.code == "PYTHON_ERROR"
    assert failure.detail == "the exception's ostinato_code is not a code"


def test_frames_of_ours_are_left_out_of_tracebacks_in_causes_too() -> None:
    try:
        try:
            from_plain("x", int, field="f")
        except UserError as inner:
            raise Rejected("outer") from inner
    except Rejected as caught:
        told = failure_from_exception(caught).traceback
    assert told.count(f'File "{__file__}"') == 2
    assert "plain.py" not in told
    assert told.count("Traceback (most recent call last):") == 2
