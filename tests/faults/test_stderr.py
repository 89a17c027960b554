"""A log that cannot be written: the service continues, and exits in order."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.faults.site import site

pytestmark = pytest.mark.faults

IN_THREADS = pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
ELSEWHERE = ("sh", "-c", 'exec "$0" "$1" 2>"$FAULTS_STDERR"', sys.executable)


@IN_THREADS
async def test_requests_are_answered_while_the_logs_disk_is_full(
    tmp_path: Path, threads: bool
) -> None:
    variables = {"FAULTS_STDERR": "/dev/full"}
    dag = {"is_thread_op": threads}
    async with site(tmp_path, command=ELSEWHERE, environment=variables, dag=dag) as at:
        clients = at.clients
        for _ in range(20):
            assert (await clients.send_request(do_work="raise:100")).err_no == 10000
            assert (await clients.send_request()).good
        at.end(failures=20)


@IN_THREADS
async def test_a_full_unread_log_pipe_does_not_block_the_service(
    tmp_path: Path, threads: bool
) -> None:
    pipe = tmp_path / "stderr"
    os.mkfifo(pipe)
    pipe_end = os.open(
        pipe, os.O_RDWR
    )  # open for reading too, so that opening for writing does not block
    variables = {"FAULTS_STDERR": str(pipe)}
    try:
        dag = {"is_thread_op": threads}
        async with site(tmp_path, command=ELSEWHERE, environment=variables, dag=dag) as at:
            clients = at.clients
            # Far more than the capacity of a pipe, 64 KiB.
            requests = [clients.send_request(limit=5.0, do_work="raise:2000") for _ in range(200)]
            answers = await asyncio.gather(*requests)
            assert [answer.err_no for answer in answers] == [10000] * 200
            assert (await clients.send_request()).good
            assert at.server.is_ready()
            assert at.server.stop(timeout=10.0) == 0
            assert at.verdict(failures=200) == []
    finally:
        os.close(pipe_end)
