"""The live page on the port for operators, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

from tests.peers.browser import browsing
from tests.service.scripts import PENSTOCK
from tests.services.process import free_port, running

APP = """
from penstock import App
app = App("doubles")

@app.route("/double")
def double(x: int) -> int:
    return 2 * x
"""


def test_the_page_is_found_by_the_service_s_address_and_offers_no_form(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    port = free_port()
    with (
        running(app, environment={"PENSTOCK_ADMIN_PORT": str(port)}, command=PENSTOCK) as server,
        browsing(tmp_path) as page,
    ):
        page.open(f"{server.http_url}/ui")
        page.until("document.getElementById('title')?.textContent === 'double'")
        assert page.evaluate("location.port") == str(port)
        page.until("document.getElementById('sending').hidden")
        assert page.evaluate("document.getElementById('docs').hidden")
        assert page.console_errors == []
