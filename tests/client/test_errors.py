import pickle

from penstock.client.errors import CallFailed
from penstock.protocols.status import GrpcCode


def test_a_failed_call_names_its_status() -> None:
    assert str(CallFailed(GrpcCode.UNAVAILABLE, "nobody there")) == "UNAVAILABLE: nobody there"


def test_a_failed_call_travels_between_processes_whole() -> None:
    error = CallFailed(GrpcCode.UNAVAILABLE, "nobody there", retryable=True, sent=False)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, str(copy)) == (error.status, str(error))
    assert (copy.retryable, copy.sent) == (True, False)
