"""The page of a service's routes in a real Chromium, without any network but loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.browser import Page, browsing
from tests.services.process import ServiceProcess, running

SERVICE = '''
from typing import Annotated
import numpy as np
from pydantic import BaseModel, Field
from penstock import App, Cookie, Header, Query
from penstock.typed.arrays import Array

app = App("garden")

class Flower(BaseModel):
    """What grows."""
    petals: int = Field(ge=1, description="how many")
    name: str = "rose"

EXAMPLES = [({"petals": 5}, {"rose": 5}), {"petals": 6, "name": "lily"}]

@app.route("/count", batch=4, examples=EXAMPLES)
def count(flowers: list[Flower]) -> list[dict[str, int]]:
    """Count petals. `name` is the key."""
    return [{each.name: each.petals} for each in flowers]

@app.route("/size")
def size(data: bytes, times: int = 1) -> int:
    return len(data) * times

@app.get("/beds/{bed:int}/{rest:path}", examples=[{"bed": 3, "rest": "a b/c", "tag": ["x", "y"]}])
def bed(
    bed: int,
    rest: str,
    tag: list[str],
    limit: Annotated[int, Query(ge=1, description="at most")] = 10,
    x_token: Annotated[str, Header()] = "",
    session: Annotated[str, Cookie()] = "",
) -> list[str]:
    return [str(bed), rest, *tag, str(limit), x_token]

app.run()
'''


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    script = tmp_path_factory.mktemp("docs") / "service.py"
    script.write_text(SERVICE)
    with running(script) as server:
        yield server


@pytest.fixture
def page(service: ServiceProcess, tmp_path: Path) -> Iterator[Page]:
    with browsing(tmp_path) as found:
        found.open(f"http://127.0.0.1:{service.http_port}/docs")
        found.until("document.querySelector('#routes')?.getAttribute('aria-busy') === 'false'")
        yield found
        here = f"http://127.0.0.1:{service.http_port}/"
        assert all(each.startswith((here, "about:", "blob:")) for each in found.urls), found.urls


ROUTE = "document.getElementById('POST_{}')"


def answer(page: Page, name: str) -> tuple[str, Any]:
    """Status and body of the answer that the page shows for a route."""
    route = ROUTE.format(name)
    status = page.until(f"{route}.querySelector('.status')?.textContent")
    body = page.evaluate(f"{route}.querySelector('.answer').textContent")
    assert "content-type: application/json" in page.evaluate(
        f"{route}.querySelector('.headers').textContent"
    )
    return status, json.loads(body)


def send(page: Page, name: str) -> None:
    page.evaluate(f"{ROUTE.format(name)}.querySelector('.status')?.remove()")
    page.evaluate(f"{ROUTE.format(name)}.querySelector('button.send').click()")


def test_the_page_shows_an_example_and_its_answer(page: Page) -> None:
    assert page.evaluate("document.title") == "garden"
    route = ROUTE.format("count")
    assert page.evaluate(f"{route}.open")  # the first one
    assert json.loads(page.evaluate(f"{route}.querySelector('textarea').value")) == {"petals": 5}
    text = page.evaluate(f"{route}.textContent")
    for shown in ("Count petals.", "What grows.", "how many", "≥ 1", "integer", "422"):
        assert shown in text
    send(page, "count")
    assert answer(page, "count") == ("200 OK", {"rose": 5})
    page.evaluate(f"{route}.querySelector('select').value = '1'")
    page.evaluate(f"{route}.querySelector('select').dispatchEvent(new Event('change'))")
    send(page, "count")
    assert answer(page, "count") == ("200 OK", {"lily": 6})
    assert page.console_errors == []


def test_the_page_sends_parameters_of_the_path_the_query_and_header_fields(page: Page) -> None:
    route = "document.getElementById('GET_beds_bed_rest')"
    page.evaluate(f"{route}.open = true")
    page.until(f"{route}.querySelector('form') !== null")
    text = page.evaluate(f"{route}.textContent")
    for shown in ("integer; ≥ 1, default 10; at most; in the query", "by commas", "a cookie,"):
        assert shown in text
    codes = page.evaluate(f"[...{route}.querySelectorAll('pre')].map((each) => each.textContent)")
    (command,) = [each for each in codes if each.startswith("curl")]
    assert command.endswith("/beds/3/a%20b%2Fc?tag=x&tag=y'")
    for number, value in ((3, "7"), (4, "secret")):
        page.evaluate(f"{route}.querySelectorAll('input')[{number}].value = '{value}'")
    page.evaluate(f"{route}.querySelector('button.send').click()")
    page.until(f"{route}.querySelector('.status')?.textContent")
    body = json.loads(page.evaluate(f"{route}.querySelector('.answer').textContent"))
    assert body == ["3", "a b/c", "x", "y", "7", "secret"]
    assert page.console_errors == []


def test_the_page_shows_a_validation_error_with_its_location(page: Page) -> None:
    page.evaluate(f"{ROUTE.format('count')}.querySelector('textarea').value = '{{\"petals\": 0}}'")
    send(page, "count")
    status, body = answer(page, "count")
    assert status.startswith("422")
    assert body["details"][0]["loc"] == ["body", "petals"]


@pytest.mark.parametrize("kind", ["multipart/form-data", "application/octet-stream"])
def test_the_page_sends_a_chosen_file(page: Page, tmp_path: Path, kind: str) -> None:
    chosen = tmp_path / "data.bin"
    chosen.write_bytes(b"12345")
    route = ROUTE.format("size")
    page.evaluate(f"{route}.open = true")
    page.until(f"{route}.querySelector('form') !== null")
    page.evaluate(f"{route}.querySelector('select').value = '{kind}'")
    page.evaluate(f"{route}.querySelector('select').dispatchEvent(new Event('change'))")
    page.choose_file("#POST_size input[type=file]", chosen)
    if kind.startswith("multipart"):
        page.evaluate(f"{route}.querySelector('input[type=text]').value = '2'")
    send(page, "size")
    assert answer(page, "size") == ("200 OK", 10 if kind.startswith("multipart") else 5)


def test_the_page_shows_and_sends_query_parameters(page: Page) -> None:
    route = "document.getElementById('GET_trace')"
    page.evaluate(f"{route}.open = true")
    page.until(f"{route}.querySelector('form') !== null")
    assert "requests integer; ≥ 1, ≤ 10000, default 100" in page.evaluate(f"{route}.textContent")
    page.evaluate(f"{route}.querySelectorAll('input')[1].value = '0.1'")
    page.evaluate(f"{route}.querySelector('button.send').click()")
    assert page.until(f"{route}.querySelector('.status')?.textContent") == "200 OK"
    assert page.urls[-1].endswith("/trace?seconds=0.1")


def test_the_content_security_policy_blocks_other_scripts(page: Page) -> None:
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'x = 1'}))"
    )
    assert page.evaluate("typeof x") == "undefined"
    page.until("1")
    assert any("Content Security Policy" in each for each in page.console_errors)
