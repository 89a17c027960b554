from collections.abc import Callable

import pytest

from benchmarks.load import Plan, Report
from benchmarks.load_http import BadResponse, check_body, length_of, load_http
from tests.benchmarks.fake_servers import RIGHT_BODY, FakeHttp, http_response, serving

RIGHT = http_response()
Answers = Callable[[int], bytes | None]


async def loaded(
    answers: Answers,
    *,
    expected: bytes | None = RIGHT_BODY,
    connections: int = 3,
    count: int = 40,
    pieces: int = 1,
) -> tuple[Report, list[FakeHttp]]:
    servers: list[FakeHttp] = []

    def connect() -> FakeHttp:
        servers.append(FakeHttp(answers, pieces))
        return servers[-1]

    plan = Plan(seconds=5.0, warmup_seconds=0.0, count=count)
    async with serving(connect) as port:
        report = await load_http(
            port=port,
            path="/echo/prediction",
            body=b'{"key":["x"],"value":["1"]}',
            expected=expected,
            connections=connections,
            plan=plan,
        )
    return report, servers


async def test_every_right_answer_is_counted_once() -> None:
    report, servers = await loaded(lambda n: RIGHT)
    assert report.fault_count == 0
    assert report.requests == 40
    assert len(servers) == 3
    # Beside those counted: some before the window opened, and those in flight when it closed.
    assert 41 <= sum(server.seen for server in servers) <= 80
    assert report.rps == pytest.approx(40 / report.seconds)
    assert 0 < report.p50_us <= report.p99_us


async def test_responses_cut_anywhere_are_put_together() -> None:
    report, _ = await loaded(lambda n: RIGHT, pieces=len(RIGHT), count=10)
    assert (report.fault_count, report.requests) == (0, 10)


async def test_heads_that_differ_by_their_date_are_all_read() -> None:
    report, _ = await loaded(lambda n: http_response(date=n), count=600)
    assert (report.fault_count, report.requests) == (0, 600)


async def test_the_window_ends_by_time() -> None:
    async with serving(lambda: FakeHttp(lambda n: RIGHT)) as port:
        plan = Plan(seconds=0.1, warmup_seconds=0.02)
        report = await load_http(
            port=port, path="/", body=b"{}", expected=RIGHT_BODY, connections=2, plan=plan
        )
    assert report.fault_count == 0
    assert 0.05 < report.seconds < 2.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (http_response(RIGHT_BODY.replace(b'"1"', b'"2"')), "expected"),
        (http_response(status="503 Service Unavailable"), "503"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "Content-Length"),
        (RIGHT + RIGHT, "more bytes"),
        (None, "connection lost"),
    ],
    ids=["wrong body", "wrong status", "no length", "two responses", "dropped connection"],
)
async def test_a_wrong_answer_is_a_fault(wrong: bytes | None, named: str) -> None:
    report, _ = await loaded(lambda n: wrong if n == 5 else RIGHT, connections=1, count=40)
    assert report.fault_count >= 1
    assert named in report.faults[0]
    assert report.requests < 40


async def test_one_bad_connection_does_not_end_the_others() -> None:
    served = 0

    def answers(n: int) -> bytes | None:
        nonlocal served
        served += 1
        return None if served == 7 else RIGHT

    report, _ = await loaded(answers, connections=3, count=40)
    assert report.fault_count == 1
    assert report.requests == 40


async def test_without_an_expected_body_any_err_no_but_zero_is_a_fault() -> None:
    busy = http_response(b'{"err_no":3004,"err_msg":"busy"}')
    report, _ = await loaded(lambda n: busy if n == 3 else RIGHT, expected=None, connections=1)
    assert "3004" in report.faults[0]


def test_a_head_is_read_whatever_the_case_of_its_names() -> None:
    assert length_of(b"HTTP/1.1 200 OK\r\nCONTENT-length:  17 \r\n\r\n") == 17
    with pytest.raises(BadResponse):
        length_of(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")


def test_only_the_expected_body_is_right() -> None:
    check_body(b"abc", b"abc")
    with pytest.raises(BadResponse):
        check_body(b"xyz", b"abc")
