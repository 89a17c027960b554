"""The runner of server processes, with scripts that behave correctly or misbehave on purpose."""

from pathlib import Path

import psutil
import pytest

from tests.services.process import ServiceFailed, candidate_ports, running

SERVER = """
import http.server, os, signal, subprocess, sys

class Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status})
        self.end_headers()
        self.wfile.write(os.getcwd().encode())

signal.signal(signal.SIGTERM, {on_term})
print("hello", sys.argv[1:], os.environ["PENSTOCK_RPC_PORT"])
print("trouble", file=sys.stderr)
{extra}
port = int(os.environ["PENSTOCK_HTTP_PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Door).serve_forever()
"""
EXIT_0 = "lambda *_: os._exit(0)"
CHILD = "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])"


def script(
    folder: Path, *, status: int = 200, on_term: str = EXIT_0, extra: str = "", text: str = SERVER
) -> Path:
    path = folder / "server.py"
    path.write_text(text.format(status=status, on_term=on_term, extra=extra))
    return path


def test_a_ready_server_is_stopped_and_its_log_collected(tmp_path: Path) -> None:
    with running(script(tmp_path), "--some", "words") as server:
        assert server.is_ready()
        assert server.stop() == 0
        assert not server.is_ready()
        assert f"hello ['--some', 'words'] {server.rpc_port}" in server.log()
        assert "trouble" in server.log()
        assert "exit 0" in repr(server)


def test_the_developers_settings_and_proxies_are_removed_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_LENIENT", "1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    extra = "print(sorted(n for n in os.environ if 'PENSTOCK' in n or 'PROXY' in n))"
    with running(script(tmp_path, extra=extra)) as server:
        assert "['PENSTOCK_HTTP_PORT', 'PENSTOCK_LOG_FORMAT', 'PENSTOCK_RPC_PORT']" in server.log()


def test_an_exit_before_readiness_is_reported_with_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"exited with 3 before it was ready(.|\n)*hello"):
        with running(script(tmp_path, extra="sys.stdout.flush(); sys.exit(3)")):
            pytest.fail("was called ready")


def test_a_503_from_readyz_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match="not ready within 1"):
        with running(script(tmp_path, status=503), timeout=1.0):
            pytest.fail("was called ready")


def test_a_server_that_ignores_sigterm_is_reported_and_killed(tmp_path: Path) -> None:
    with running(script(tmp_path, on_term="signal.SIG_IGN")) as server:
        with pytest.raises(ServiceFailed, match=r"still running after 0.2 s"):
            server.stop(timeout=0.2)
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)


def test_children_are_killed_when_the_block_raises(tmp_path: Path) -> None:
    started: list[psutil.Process] = []

    def raise_while_it_runs() -> None:
        with running(script(tmp_path, extra=CHILD)) as server:
            started.extend([psutil.Process(server.pid), *server.descendants()])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        raise_while_it_runs()
    assert len(started) == 2
    assert [process.is_running() for process in started] == [False, False]


def test_children_that_outlive_the_server_are_reported_and_killed(tmp_path: Path) -> None:
    with running(script(tmp_path, extra=CHILD)) as server:
        assert server.stop() == 0
        (child,) = server.leftovers(timeout=0.1)
    assert not child.is_running()


def test_pytest_workers_choose_from_disjoint_ports() -> None:
    port_sets = [
        set(
            candidate_ports(
                {"PYTEST_XDIST_WORKER": f"gw{worker}", "PYTEST_XDIST_WORKER_COUNT": "3"}
            )
        )
        for worker in range(3)
    ]
    assert set.union(*port_sets) == set(candidate_ports({}))
    assert sum(map(len, port_sets)) == len(candidate_ports({}))
