"""Nobody takes the log: the service serves on, and ends as it should."""

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
async def test_a_full_disk_under_the_log_is_not_the_callers_concern(
    tmp_path: Path, threads: bool
) -> None:
    variables = {"FAULTS_STDERR": "/dev/full"}
    dag = {"is_thread_op": threads}
    async with site(tmp_path, command=ELSEWHERE, environment=variables, dag=dag) as at:
        clients = at.clients
        for _ in range(20):
            assert (await clients.ask(do_work="raise:100")).err_no == 10000
            assert (await clients.ask()).good
        at.end(failures=20)


@IN_THREADS
async def test_a_log_that_nobody_reads_does_not_stop_the_service(
    tmp_path: Path, threads: bool
) -> None:
    pipe = tmp_path / "stderr"
    os.mkfifo(pipe)
    unread = os.open(pipe, os.O_RDWR)  # open for reading too, so that nobody waits for a reader
    variables = {"FAULTS_STDERR": str(pipe)}
    try:
        dag = {"is_thread_op": threads}
        async with site(tmp_path, command=ELSEWHERE, environment=variables, dag=dag) as at:
            clients = at.clients
            # Far more than a pipe holds, which is 64 KiB.
            asked = [clients.ask(limit=5.0, do_work="raise:2000") for _ in range(200)]
            answers = await asyncio.gather(*asked)
            assert [answer.err_no for answer in answers] == [10000] * 200
            assert (await clients.ask()).good
            assert at.server.is_ready()
            assert at.server.stop(timeout=10.0) == 0
            assert at.verdict(failures=200) == []
    finally:
        os.close(unread)
