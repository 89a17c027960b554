"""Texts of failures: our errors keep their class, and users' exceptions cannot break the text."""

import logging

import pytest

from penstock.errors import (
    DeclaredError,
    HookFailed,
    HttpError,
    InferenceFailed,
    InputMismatch,
    ProductError,
    RequestError,
    WrongType,
)
from penstock.ops.failures import (
    batch_failed,
    hook_raised,
    log_culprits,
    not_a_feed,
    process_gave,
    process_gave_code,
    process_raised,
    timed_out,
)
from penstock.ops.op import Op
from penstock.ops.product import CustomException
from penstock.protocols.status import CustomExceptionCode
from penstock.request import Batch, CloseReason, Sample

ADVICE = (
    "Please check the input dict and checkout PipelineServingLogs/pipeline.log for more details."
)
SAMPLE = Sample(3, {}, 9.0, log_id=7)


class Silent(Exception):
    """An exception whose text cannot be computed."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Cat(Op):
    pass


def test_an_exception_of_process_has_the_original_s_text() -> None:
    error = process_raised("cat", ValueError("no such cat"), 7)
    assert type(error) is HookFailed
    assert str(error) == f"[cat] failed to predict. no such cat. {ADVICE}"


def test_our_errors_keep_their_class_when_process_raises_them() -> None:
    error = process_raised("cat", InputMismatch("wrong rank"), 7)
    assert type(error) is InputMismatch
    assert str(error) == f"[cat] failed to predict. wrong rank. {ADVICE}"


def test_our_errors_are_unchanged_when_another_hook_raises_them() -> None:
    error = InputMismatch("wrong rank")
    assert hook_raised(Cat("cat"), "preprocess", SAMPLE, error) is error


@pytest.mark.parametrize("error", [Silent(), KeyError()])
def test_an_exception_without_a_text_is_named_by_its_type(error: Exception) -> None:
    name = type(error).__name__
    assert f"predict. {name}. " in str(process_raised("cat", error, 7))
    assert f"Raise_msg: {name} " in str(hook_raised(Cat("cat"), "postprocess", SAMPLE, error))


def test_an_exception_of_another_hook_names_class_and_hook_without_apostrophes() -> None:
    error = hook_raised(Cat("cat"), "postprocess", SAMPLE, ValueError("it's a dog"))
    assert type(error) is HookFailed
    assert str(error) == (
        "Log_id: 7  Raise_msg: its a dog  ClassName: Cat.postprocess  "
        "FunctionName: postprocess_help"
    )


def test_a_declared_error_of_another_hook_has_the_text_before_the_first_colon() -> None:
    raised = CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "one: two\nthree", True)
    error = hook_raised(Cat("cat"), "preprocess", SAMPLE, raised)
    assert type(error) is DeclaredError
    assert error.number == CustomExceptionCode.INPUT_PARAMS_ERROR.value
    assert "Raise_msg: one  ClassName" in str(error)
    assert "one: two\nthree" in str(process_raised("cat", raised, 7))


def test_an_error_code_of_process_is_sent_if_it_is_an_int32() -> None:
    good = process_gave_code("cat", "broken pipe", 5000)
    assert type(good) is DeclaredError
    assert good.number == 5000
    assert type(process_gave_code("cat", "", 2**31)) is HookFailed


def test_a_result_of_a_wrong_type_and_a_missing_result_are_different_errors() -> None:
    assert type(process_gave("cat", None)) is InferenceFailed
    assert type(process_gave("cat", [1])) is WrongType
    assert "must give a dict, got list" in str(process_gave("cat", [1]))
    assert "a list of dicts, to process; got int" in str(not_a_feed("cat", 5))


def test_a_result_that_cannot_be_scattered_is_a_failed_prediction() -> None:
    assert str(batch_failed("cat", InferenceFailed("no rows"))).startswith("[cat] failed to")
    other = InputMismatch("a lod")
    assert batch_failed("cat", other) is other


@pytest.mark.parametrize(("attempts", "attempts_text"), [(1, "1 attempt"), (3, "3 attempts")])
def test_a_timeout_names_the_worker_the_batch_and_its_limit(
    attempts: int, attempts_text: str
) -> None:
    batch = Batch([SAMPLE, Sample(4, {}, 9.0)], CloseReason.FULL, 0.0)
    batch.worker = 2
    assert str(timed_out("cat", batch, 0.25, attempts)) == (
        "[cat] failed to predict. (log_id=7) [cat|2] Failed to process(batch: [3, 4]): exceeded "
        f"retry count. It may take 250 ms, with {attempts_text}. {ADVICE}"
    )


def test_a_missing_key_s_error_names_the_present_keys() -> None:
    sample = Sample(3, {"read": {"feature": "1"}}, 9.0, log_id=7)
    error = hook_raised(Cat("cat"), "preprocess", sample, KeyError("features"))
    assert str(error).startswith(
        "Log_id: 7  Raise_msg: KeyError: features (the input has feature)  ClassName: Cat."
    )
    error = hook_raised(Cat("cat"), "postprocess", sample, KeyError("label"), {"labels": 1})
    assert "KeyError: label (the result has labels; the input has feature)" in str(error)


def test_an_exception_of_a_hook_is_a_warning_and_a_declared_error_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    declared = CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "say it", True)
    with caplog.at_level(logging.INFO):
        hook_raised(Cat("cat"), "preprocess", SAMPLE, ValueError("a fault"))
        hook_raised(Cat("cat"), "preprocess", SAMPLE, declared)
        process_raised("cat", declared, 7)
        process_raised("cat", InputMismatch("wrong rank"), 7)
        hook_raised(Cat("cat"), "postprocess", SAMPLE, WrongType("no array"))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO", "INFO", "WARNING"]
    assert caplog.messages[0] == "op cat: preprocess raised (data_ids=[3] log_id=7)"
    assert "ValueError: a fault" in caplog.text
    assert caplog.messages[-1] == "op cat: postprocess: no array (data_ids=[3] log_id=7)"


def test_an_exception_of_process_is_logged_once_its_sample_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault = ValueError("no such cat")
    error = process_raised("cat", fault, 7)
    assert error.__cause__ is fault
    assert caplog.records == []
    log_culprits("cat", [(SAMPLE, error)])
    log_culprits("cat", [(SAMPLE, error)])
    assert caplog.messages == ["op cat: process raised (data_ids=[3] log_id=7)"]


def test_an_error_of_preprocess_with_a_cause_is_one_line_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    raised = InputMismatch("'x' is no array")
    raised.__cause__ = ValueError("neither array(...) nor a list")
    error = hook_raised(Cat("cat"), "preprocess", SAMPLE, raised)
    log_culprits("cat", [(SAMPLE, error)])
    assert caplog.messages == ["op cat: preprocess: 'x' is no array (data_ids=[3] log_id=7)"]
    assert "Traceback" not in caplog.text


def test_errors_have_the_type_and_traceback_of_the_exception_for_operators() -> None:
    try:
        raise Silent
    except Silent as fault:
        raised_in_process = process_raised("cat", fault, 7)
        raised_in_hook = hook_raised(Cat("cat"), "preprocess", SAMPLE, fault, label="zoo/cat")
    log_culprits("zoo/cat", [(SAMPLE, raised_in_process)])
    for error in (raised_in_process, raised_in_hook):
        assert error.raised is not None
        assert (error.raised.op, error.raised.kind) == ("zoo/cat", f"{__name__}.Silent")
        first, *_, last = error.raised.traceback.splitlines()
        assert first == "Traceback (most recent call last):"
        assert "raise Silent" in error.raised.traceback
        assert "Silent" in last
        assert "Traceback" not in str(error)
    endless = hook_raised(Cat("cat"), "preprocess", SAMPLE, ValueError("long" * 9000)).raised
    assert endless is not None
    assert (endless.kind, len(endless.traceback)) == ("ValueError", 8000)


def test_errors_without_an_exception_of_the_op_have_no_traceback() -> None:
    declared = CustomException(CustomExceptionCode.INPUT_PARAMS_ERROR, "say it", True)
    errors = [
        process_gave("cat", None),
        process_raised("cat", InputMismatch("wrong rank"), 7),
        process_raised("cat", declared, 7),
        _late(),
        hook_raised(Cat("cat"), "preprocess", SAMPLE, declared),
        hook_raised(Cat("cat"), "preprocess", SAMPLE, HttpError(404, "no such cat")),
    ]
    log_culprits("cat", [(SAMPLE, error) for error in errors])
    assert [error.raised for error in errors] == [None] * len(errors)


def _late() -> RequestError:
    return timed_out("cat", Batch([SAMPLE], CloseReason.FULL, 0.0), 0.25, 1)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (process_raised("cat", InputMismatch("wrong rank"), 7), "process: wrong rank"),
        (process_raised("cat", MemoryError(), 7), "process raised"),
        (process_gave("cat", None), "process gave no result"),
        (process_gave("cat", 5), "process must give a dict, got int"),
        (batch_failed("cat", InferenceFailed("no batch axis")), "process: no batch axis"),
        (_late(), "process took longer than its timeout. It may take 250 ms, with 1 attempt"),
    ],
)
def test_each_failure_of_process_is_one_log_line_with_op_hook_and_ids(
    error: RequestError, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    log_culprits("cat", [(SAMPLE, error)])
    assert caplog.messages == [f"op cat: {message} (data_ids=[3] log_id=7)"]


def test_a_product_error_is_not_logged_as_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for error in (process_gave_code("cat", "full", 51), process_raised("cat", chosen(), 7)):
        log_culprits("cat", [(SAMPLE, error)])
    hook_raised(Cat("cat"), "preprocess", SAMPLE, chosen())
    assert caplog.messages == []


def chosen() -> ProductError:
    return ProductError(51, "full")


class Bare(CustomException):
    """Does not call its base's constructor."""

    def __init__(self) -> None:
        pass


class Mute(InputMismatch):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(("error", "name"), [(Bare(), "Bare"), (Mute(), "no words")])
def test_exceptions_without_their_base_s_attributes_are_failed_hooks(
    error: BaseException, name: str
) -> None:
    for failure in (
        process_raised("cat", error, 7),
        hook_raised(Cat("cat"), "preprocess", SAMPLE, error),
    ):
        assert type(failure) is HookFailed
        assert name in str(failure)
