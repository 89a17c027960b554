"""The scripts of the live page one by one in a real Chromium: each with the scripts that it uses,
and with states of a service that are written here.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.api.html import page as page_text
from tests.peers.browser import Page, browsing
from tests.peers.test_live_page import CUT, shot
from tests.services.process import ROOT

FOLDER = ROOT / "penstock/api/ui"
HTML = (FOLDER / "page.html").read_text()
SCRIPTS = re.findall('<script src="(.+).js"></script>', HTML)
ELEMENTS = ("words", "names", "answers", "history", "elements", "charts")
"""What most parts use."""
OF_OPS = ("service", "links", "panel", "access", "trends", "places", "op")
"""What those use that show ops."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(browser: Page) -> Page:
    browser.open("about:blank")
    browser.until("location.href === 'about:blank' && typeof byId === 'undefined'")
    browser.console_errors.clear()
    return browser


def load(page: Page, *names: str) -> None:
    """The page's elements and style, and these scripts only."""
    tree = page.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
    style = f"<style>{(FOLDER / 'page.css').read_text()}</style>"
    html = re.sub("<script.*</script>|<link rel=.stylesheet.*>", "", HTML)
    page.call("Page.setDocumentContent", frameId=tree, html=html.replace("</head>", style))
    for name in names:
        page.evaluate((FOLDER / f"{name}.js").read_text() + "\n;0")


def op(name: str, *inputs: str, **changes: Any) -> dict[str, Any]:
    """An op in a service's status: one idle worker, nothing counted yet."""
    counted = {"samples": 0, "batches": 0, "timeouts": 0, "deaths": 0, "errors": 0, "transfer": 0}
    return {
        "name": name, "inputs": list(inputs), "reads_request": not inputs,
        "workers": 1, "idle": 1, "waiting": 0, **counted,
        "queue": {"sum": 0, "classes": {}}, "rows": {"classes": {"<= 1": 0}}, "reasons": {},
        "seconds": {"preprocess": 0, "process": 0, "postprocess": 0}, "worker_changes": {},
        "batching": {"batch_size": 4, "window": 0, "by": None, "why": None},
        **changes,
    }  # fmt: skip


def graph(name: str | None, *ops: dict[str, Any]) -> dict[str, Any]:
    ended = {"answers": {"ok": 0}, "seconds": {"sum": 0}}
    return {
        "name": name, "version": "1", "state": "serving", "inside": 0, "requests": ended,
        "ops": list(ops),
    }  # fmt: skip


def status(*graphs: dict[str, Any], answered: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "ready": True, "why": "ok", "engines": 1, "graphs": list(graphs), "refusals": {},
        "requests": {"admitted": answered, "answered": answered, "inside": 1, "waiting": 0},
        "answers": {"ok": answered}, "seconds": {"sum": 0.01 * answered, "classes": {}},
        **changes,
    }  # fmt: skip


def remember(page: Page, at: float, state: dict[str, Any]) -> None:
    page.evaluate(f"remember({json.dumps({'at': at, 'status': state})})")


def answer(value: Any) -> str:
    """An answer of the service with this value, or with one that another expression gives."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{{ ok: true, json: async () => ({text}) }}"


def values(page: Page, *expressions: str) -> list[Any]:
    found = page.evaluate(f"JSON.stringify([{', '.join(expressions)}])")
    return list(json.loads(found))


def texts(page: Page, selector: str) -> list[str]:
    found = page.evaluate(f"[...document.querySelectorAll({selector!r})].map((x) => x.textContent)")
    return list(found)


CHAIN = graph("shop", op("shop/first"), op("last", "shop/first"))
FIRST, LAST = (f"shop\n1\n{name}" for name in ("shop/first", "last"))


def busy_chain(page: Page) -> None:
    """Two answers, ten seconds apart: the first op has run 40 requests in 10 batches."""
    remember(page, 100, status(CHAIN))
    times = {"preprocess": 0.1, "process": 2.0, "postprocess": 0.4}
    worked = op(
        "shop/first", samples=40, batches=10, workers=2, idle=0, waiting=3, transfer=0.05,
        queue={"sum": 0.4, "classes": {"<= 0.1": 40}}, seconds=times,
        reasons={"window": 9, "size": 1}, rows={"classes": {"<= 1": 2, "<= 4": 8}},
    )  # fmt: skip
    failed = op("last", "shop/first", errors=2)
    remember(page, 110, status(graph("shop", worked, failed), answered=40))


# Without elements.


def test_every_script_of_the_folder_is_part_of_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(path.stem for path in FOLDER.glob("*.js"))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[0, 9999, 12345, 123456, 2500000].map(count)", ["0", "9,999", "12.3k", "123k", "2.5M"]),
        ("[0, 0.25, 9.96, 10.4, 20000].map(rate)", ["0", "0.3", "10.0", "10", "20.0k"]),
        ("[null, NaN, 0, 0.0123].map(time)", ["–", "–", "0 ms", "0.012 ms"]),
        ("[0.5, 12.34, 123.4].map(time)", ["0.50 ms", "12.3 ms", "123 ms"]),
        ("[1234, 12345].map(time)", ["1.23 s", "12.3 s"]),
        ("[0.4, 89, 120].map(ago)", ["now", "89 s ago", "2 min ago"]),
        ("[2048, 3 << 20, 1.5 * (1 << 30)].map(bytes)", ["2 KiB", "3 MiB", "1.50 GiB"]),
        ("[several(1, 'op'), several(2, 'op')]", ["1 op", "2 ops"]),
        ("[share(1, 4), share(1, 0)]", ["25 %", "–"]),
    ],
)
def test_numbers_are_short_texts(page: Page, expression: str, expected: list[str]) -> None:
    load(page, "words")
    assert values(page, expression) == [expected]


def test_ops_of_a_named_graph_have_short_names_and_a_filter(page: Page) -> None:
    load(page, "names")
    page.evaluate("filter = 'fir'")
    given = f"({json.dumps(CHAIN)})"
    assert values(
        page,
        f"{given}.ops.map((op) => shortName({given}, op))",
        f"{given}.ops.map((op) => keyOf({given}, op))",
        "['shop/First', 'last'].map(matches)",
        "[called({name: 'shop'}), called({name: null})]",
    ) == [["first", "last"], [FIRST, LAST], [True, False], ["shop", "any name"]]


def test_figures_are_differences_over_the_interval(page: Page) -> None:
    load(page, "names", "answers")
    busy_chain(page)
    page.evaluate(f"var at = figures({FIRST!r}, interval())")
    assert values(page, "at.rate", "at.batchRate", "at.size", "at.busy") == [4, 1, 4, 2]
    assert values(page, "at.wait", "at.transfer", "at.process") == [10, 5, 200]
    assert values(page, "at.state", f"figures({LAST!r}, interval()).state") == ["queue", "errors"]
    assert values(page, "series((each) => each.status.requests.answered)") == [[4]]


def test_the_interval_is_a_window_of_seconds_and_old_answers_are_dropped(page: Page) -> None:
    load(page, "names", "answers")
    for second in range(100):
        remember(page, second, status(answered=second))
    assert values(page, "interval().seconds", "past.length", "past[0].at") == [5, 90, 10]
    remember(page, 100, status(answered=3))  # another process: its counters begin at 0
    assert values(page, "past.length", "interval().seconds") == [1, 0]


def points(first: int, *rates: float | None, now: float = 0.0, **ops: Any) -> dict[str, Any]:
    """Points of a service's history, with these rates."""
    idle = dict.fromkeys(("failed", "refused", "p50", "p99", "inside"), [None] * len(rates))
    series = {"rate": [*rates], **idle}
    return {
        "every": 5, "now": now or 5 * (first + len(rates)) + 1, "first": first, "service": series,
        "graphs": [{"name": "shop", "version": "1", **series}],
        "ops": [{"name": name, **each} for name, each in ops.items()],
    }  # fmt: skip


def test_answers_with_points_are_joined_by_their_numbers(page: Page) -> None:
    load(page, "history")

    def add(answer: dict[str, Any]) -> list[Any]:
        page.evaluate(f"stored = joined(stored, {json.dumps(answer)})")
        return values(page, "stored.first", "stored.end", "stored.service.rate")

    assert add(points(0)) == [0, 0, []]
    assert values(page, "newest(stored.service, 'rate')", "newest(undefined, 'rate')") == [None] * 2
    assert add(points(10, 1, 2, 3)) == [10, 13, [1, 2, 3]]
    assert add(points(12, 4, None, 6)) == [10, 15, [1, 2, 4, None, 6]]  # a late engine has added
    assert add(points(13, now=80.0)) == [10, 15, [1, 2, 4, None, 6]]  # nothing is new
    assert add(points(17, 8, work={"batch": [2]})) == [10, 18, [1, 2, 4, None, 6, None, None, 8]]
    assert values(page, "stored.ops.get('work').batch", "newest(stored.service, 'rate')") == [
        [*[None] * 7, 2],
        8,
    ]
    assert values(page, "stored.graphs.get('shop\\n1').rate.length") == [8]
    add(points(17, 8, now=100.0, work={"batch": [4]}))
    assert values(page, "stored.ops.get('work').batch") == [[*[None] * 7, 4]]
    first, end, rates = add(points(185, 9))  # 180 points are 15 minutes
    assert (first, end, len(rates), rates[-1]) == (10, 186, 176, 9)
    assert values(page, "stored.ops.size") == [0]  # else it would have a gap
    first, end, rates = add(points(195, 9))
    assert (first, end, len(rates), rates[:3]) == (16, 196, 180, [None, 8, None])
    assert add(points(2, 7)) == [2, 3, [7]]  # the machine has started again


def test_layers_follow_the_inputs_and_edges_do_not_cross(page: Page) -> None:
    load(page, "layers")
    crossed = graph(
        "g", op("a"), op("b"), op("of_b", "b"), op("of_a", "a"), op("end", "of_b", "of_a")
    )
    page.evaluate(f"var found = layers({json.dumps(crossed)})")
    layer, ways = values(page, "found.nodes.map((each) => each.layer)", "found.ways")
    assert layer == [1, 1, 2, 2, 3, 0, 4]  # the request and the answer are the last
    assert ways == [[5, 0], [5, 1], [1, 2], [0, 3], [2, 4], [3, 4], [4, 6]]
    place = page.evaluate("found.nodes.map((each) => each.place)")
    assert (place[0] < place[1]) == (place[3] < place[2])
    assert [place[4], place[5], place[6]] == pytest.approx([0, 0, 0])


def test_an_edge_over_several_layers_has_lanes_beside_the_ops_there(page: Page) -> None:
    load(page, "layers")
    ops = (
        op("detect"),
        op("crop", "detect", reads_request=True),
        op("read", "crop"),
        op("gather", "detect", "crop", "read"),
    )
    page.evaluate(f"var found = layers({json.dumps(graph('g', *ops))})")
    ways, nodes = values(
        page, "found.ways", "found.nodes.map(({layer, place}) => ({layer, place}))"
    )
    detect, crop, read, gather, request, answer = range(6)
    past_detect, past_crop, past_read = 6, 7, 8
    assert ways == [
        [request, detect],
        [request, past_detect, crop],
        [detect, crop],
        [crop, read],
        [detect, past_crop, past_read, gather],
        [crop, past_read, gather],  # leads to the same op as the one before: they share a lane
        [read, gather],
        [gather, answer],
    ]
    for one, lane in ((detect, past_detect), (crop, past_crop), (read, past_read)):
        assert nodes[one]["layer"] == nodes[lane]["layer"]
        assert abs(nodes[one]["place"] - nodes[lane]["place"]) >= 0.6 - 1e-9
    row = [nodes[one]["place"] for one in (request, detect, crop, read, gather, answer)]
    assert row == pytest.approx([row[0]] * 6, abs=0.02)  # lanes hardly move the ops


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "examples": ["rose"], "default": "x"}, "rose"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": ["number", "null"]}, 0),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
        ({"type": "array", "items": {"const": 7}, "minItems": 2}, [7, 7]),
        ({"type": "array"}, []),
        ({"$ref": "#/parts/a~1b"}, {"c": ""}),
        ({"$ref": "#/parts/circle"}, {}),
        ({"properties": {"x": {"$ref": "#/parts/nested"}}}, {"x": {"x": {"must": ""}}}),
        ({}, {}),
    ],
)
def test_a_sample_fits_its_schema(page: Page, schema: Any, expected: Any) -> None:
    load(page, "sample")
    text = {"type": "string"}
    inner = {"properties": {"must": text, "may": text}, "required": ["must"]}
    parts = {
        "a/b": {"type": "object", "properties": {"c": text}},
        "circle": {"$ref": "#/parts/circle"},
        "nested": {"properties": {"x": inner}},
    }
    document = json.dumps({"parts": parts})
    assert values(page, f"sample({document}, {json.dumps(schema)})") == [expected]


# Elements.


def test_elements_are_made_of_attributes_listeners_and_children(page: Page) -> None:
    load(page, "elements")
    page.evaluate("var clicked = 0")
    page.evaluate("var made = link('<b>', () => { clicked += 1; }, { id: 'x', title: null })")
    page.evaluate("made.click()")
    assert values(page, "clicked", "made.outerHTML") == [
        1,
        '<button class="plain" id="x">&lt;b&gt;</button>',
    ]
    children = "make('p', {}, ['a', null], false, undefined, 'b').textContent"
    assert values(page, children, "draw('g').namespaceURI === SVG") == ["ab", True]


def test_equal_texts_and_attributes_are_not_set_again(page: Page) -> None:
    load(page, "elements")
    page.evaluate("var at = byId('health'), seen = new MutationObserver(() => {})")
    page.evaluate("seen.observe(at, {childList: true, attributes: true})")
    equal, other = "'Connecting …'), set(at, 'class', 'soft'", "'ready'), set(at, 'class', 'good'"
    assert page.evaluate(f"say(at, {equal}), seen.takeRecords().length") == 0
    assert page.evaluate(f"say(at, {other}), seen.takeRecords().length") == 2


def test_the_newest_value_of_a_line_is_at_the_right(page: Page) -> None:
    load(page, "words", "elements", "charts")
    assert values(page, "line([0, 5, 10], 100, 20, 12)", "line([], 9, 9)") == [
        "80.0,19.0 90.0,10.0 100.0,1.0",
        "",
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[0, 0.03, 1, 1.2, 4, 6, 5000, 0.2].map(roundUp)", [1, 0.05, 1, 2, 5, 10, 5000, 0.2]),
        ("path([0, 5, 10], 5, 100, 10)", "M2 100.00L3 50.00L4 0.00"),
        ("path([0, null, 10, 10], 4, 100, 10)", "M0 100.00h.01M2 0.00L3 0.00"),
        ("path([null], 4, 100, 10)", ""),
    ],
)
def test_lines_have_gaps_where_nothing_is_known(page: Page, expression: str, expected: Any) -> None:
    load(page, "words", "history", "elements", "charts")
    assert values(page, expression) == [expected]


def test_charts_show_the_newest_values_or_those_under_the_cursor(page: Page) -> None:
    load(page, "words", "history", "elements", "charts")
    page.evaluate(
        "var drawn = charts(["
        "{title: 'Rate', text: rate, lines: [['rate', 'answered', 'main'], ['failed', '<b>', '']]},"
        "{title: 'Time', lines: [['p50', 'p50', 'main']], text: time}]);"
        "byId('trends').replaceChildren(drawn.element), 0"
    )
    page.evaluate("drawn.show({rate: [3, 7, 4], failed: [0, 1, 0], p50: [null, 12, null]}, 5)")
    assert texts(page, ".chart .legend") == ["answered 4.0<b> 0", "p50 –"]
    assert texts(page, ".chart .top") == ["10", "20.0 ms"]
    labels = "[...document.querySelectorAll('.plot svg')].map((x) => x.getAttribute('aria-label'))"
    assert page.evaluate(labels) == [
        "Rate, last 15 minutes: at most 7.0",
        "Time, last 15 minutes: at most 12.0 ms",
    ]
    page.evaluate(
        "var box = document.querySelector('.plot').getBoundingClientRect();"
        "var point = (type, x) => document.querySelector('.plot svg').dispatchEvent("
        "new PointerEvent(type, { bubbles: true, clientX: x }));"
        "point('pointermove', box.right - box.width / 179)"
    )
    assert texts(page, ".chart .legend") == ["answered 7.0<b> 1.0", "p50 12.0 ms"]
    assert texts(page, ".chart .times") == ["15 min ago5 s ago"] * 2
    page.evaluate("drawn.element.dispatchEvent(new PointerEvent('pointerleave'))")
    assert texts(page, ".chart .legend") == ["answered 4.0<b> 0", "p50 –"]
    assert texts(page, ".chart .times") == ["15 min agonow"] * 2


def test_a_histogram_is_a_list_and_a_stack_has_shares(page: Page) -> None:
    load(page, "words", "elements", "charts")
    page.evaluate("byId('panel-body').append(columns({'<= 1': 5, '> 1': 10}))")
    assert texts(page, "[role=listitem]") == ["5≤ 1", "10> 1"]
    assert texts(page, ".columns i") == ["", ""]
    heights = "[...document.querySelectorAll('.columns i')].map((x) => x.style.height)"
    grown = "[...stack([['queue', 1], ['run', null], ['process', 3]]).children]"
    shares = f"{grown}.map((x) => x.style.flexGrow)"
    assert values(page, heights, shares) == [["1.1rem", "2.2rem"], ["0.25", "0.75"]]


def test_the_tiles_show_the_service_as_a_whole(page: Page) -> None:
    load(page, *ELEMENTS, "service")
    remember(page, 0, status())
    page.evaluate("showWhole()")
    assert texts(page, ".tile dd:not(.more)") == ["0 per second", "– ", "1 request", "0 per second"]
    assert values(page, "byId('health').textContent", "byId('health').className") == [
        "● ready",
        "good",
    ]
    state = status(
        answered=20, ready=False, why="no worker", engines=2, answers={"ok": 15, "busy": 5},
        refusals={"full": 7},
    )  # fmt: skip
    remember(page, 10, state)
    page.evaluate("stored = { service: { p50: [null, 12.5], p99: [null, 48] } }")
    page.evaluate("showWhole()")
    assert texts(page, ".tile dd:not(.more)") == [
        "2.0 per second",
        "12.5 ms",
        "1 request",
        "1.2 per second",
    ]
    more = ["20 answered since the start", "99 % within 48.0 ms", "0 of them wait for admission"]
    assert texts(page, ".tile dd.more") == [*more, "full 7, busy 5"]
    assert values(page, "byId('health').textContent", "byId('spoken').textContent") == [
        "▲ not ready: no worker, 2 engines",
        "not ready: no worker, 2 engines",
    ]


def test_the_trends_are_those_of_the_service_or_of_a_graph(page: Page) -> None:
    load(page, *ELEMENTS, "service", "access", "trends")
    remember(page, 0, status(CHAIN))
    page.evaluate("showTrends()")  # before the first points
    page.evaluate(f"stored = joined(null, {json.dumps(points(1, 8))}), showTrends()")
    assert page.evaluate("byId('of').hidden")
    assert texts(page, "#trends .legend")[0] == "answered 8.0failed –refused –"
    two = points(1, 8)
    two["graphs"].append({**two["graphs"][0], "version": "2", "rate": [3]})
    page.evaluate(f"stored = joined(null, {json.dumps(two)})")
    remember(page, 1, status(CHAIN, {**CHAIN, "version": "2"}))
    page.evaluate("showTrends()")
    assert texts(page, "#of option") == ["All graphs", "shop", "shop version 2"]
    page.evaluate("byId('of').value = 'shop\\n2', byId('of').dispatchEvent(new Event('change'))")
    assert texts(page, "#trends .legend")[0] == "answered 3.0failed –refused –"
    remember(page, 2, status(CHAIN))
    page.evaluate("showTrends()")
    assert texts(page, "#trends .legend")[0] == "answered 8.0failed –refused –"


def test_callers_are_shown_with_why_they_were_refused(page: Page) -> None:
    load(page, *ELEMENTS, "callers")
    remember(page, 0, status(callers=[]))
    page.evaluate("showCallers()")
    assert page.evaluate("byId('calling').hidden")
    ann = {"name": "<i>ann</i>", "requests": 120, "failed": 2, "refused": {"a": 1, "b": 3}}
    other = {"requests": 7, "failed": 0, "refused": {}}
    callers = [ann, *({"name": name, **other} for name in ("", "constructor", "*"))]
    remember(page, 10, status(callers=callers))
    remember(page, 15, status(callers=[{**ann, "requests": 140}, *callers[1:]]))
    page.evaluate("showCallers()")
    assert texts(page, "#callers tbody tr") == [
        "<i>ann</i>4.01402b 3, a 1",
        "without a name070–",
        "constructor070–",
        "all others070–",
    ]
    assert not page.evaluate("byId('calling').hidden")


VERSIONS = ("rollouts", "swaps", "versions")


def test_versions_are_shown_if_there_are_others_than_the_first(page: Page) -> None:
    load(page, *ELEMENTS, *VERSIONS)
    remember(page, 0, status(CHAIN, graph(None, op("x"))))
    page.evaluate("showVersions()")
    assert page.evaluate("byId('versioned').hidden")
    ended = {"answers": {"ok": 10}}
    old = {**CHAIN, "state": "draining", "inside": 3, "default": False}
    new = {**CHAIN, "version": "2", "default": True}
    remember(page, 0, status(old, {**new, "state": "aside"}))
    remember(page, 5, status(old, {**new, "requests": ended}))
    page.evaluate("showVersions()")
    assert texts(page, "#versions tbody tr") == [
        "shop1finishing its requests–0–––3",
        "shop2serving, default–2.00 %––0",
    ]


def test_versions_are_shown_side_by_side(page: Page) -> None:
    load(page, *ELEMENTS, *VERSIONS)
    stable = {**CHAIN, "share": 0.95, "labels": ["stable"], "default": True}
    other = {**graph("n", op("n/x")), "share": 1}
    canary = {
        **CHAIN, "version": "<b>2</b>", "share": 0.05, "labels": [], "default": False,
        "copies": {"same": 197, "differed": 3, "dropped": 9, "failed": 0},
    }  # fmt: skip
    remember(page, 0, status(stable, other, canary))
    answered = {"requests": {"answers": {"ok": 990, "timeout": 10}}}
    remember(page, 10, status({**stable, **answered}, other, canary))
    points = {"rate": [1], "failed": [0], "refused": [0], "p50": [1], "p99": [12.5], "inside": [0]}
    history = {
        "every": 5, "now": 10, "first": 1, "service": points, "ops": [],
        "graphs": [{"name": "shop", "version": "1", **points}],
    }  # fmt: skip
    page.evaluate(f"stored = joined(null, {json.dumps(history)})")
    page.evaluate("showVersions()")
    assert texts(page, "#versions tbody tr") == [
        "shop1serving, default, stable95 %1001.0 %12.5 ms–0",
        "shop<b>2</b>serving5.0 %0––1.5 %0",
        "n1serving100 %0–––0",
    ]


def swap(**changes: Any) -> dict[str, Any]:
    return {
        "model": "m", "versions": ["3"], "ends": ["2"], "change": 1, "began": 90.0, "steps": {},
        "state": "done", "why": "", "serves": "", "tries": 1, **changes,
    }  # fmt: skip


def test_a_swap_is_a_line_of_its_steps(page: Page) -> None:
    load(page, *ELEMENTS, *VERSIONS)
    steps = {"fetched": 91.0, "opened": 93.0, "swapped": 93.0, "drained": 94.0}
    swaps = [
        swap(steps=steps, serves="version 3 is the default of 3"),
        swap(versions=[], ends=["1"]),
        swap(model=None, ends=[], state="failed", why="<b>no memory", tries=4),
        swap(state="running", ends=["3"], began=99.5),
    ]
    remember(page, 100, status(CHAIN, swaps=swaps))
    page.evaluate("showVersions()")
    assert not page.evaluate("byId('versioned').hidden")
    assert texts(page, "#swaps .bar") == [
        "m version 3● under waynow",
        "any name version 3✕ failed10 s ago",
        "m: version 1 ends✓ done10 s ago",
        "m version 3 in place of 2✓ done4.00 s10 s ago",
    ]
    assert texts(page, "#swaps .legend li") == [
        "fetched 1.00 s", "opened 2.00 s", "swapped 0 ms", "drained 1.00 s",
    ]  # fmt: skip
    found = (
        "[...document.querySelectorAll('#swaps .seg')].map((x) => [x.style.left, x.style.width])"
    )
    assert values(page, found) == [[["0%", "25%"], ["25%", "50%"], ["75%", "25%"]]]
    assert texts(page, "#swaps .note") == ["<b>no memory (tried 4 times)"]
    assert texts(page, "#unserved .note") == [
        "any name version 3 is not served: <b>no memory (tried 4 times)"
    ]
    remember(page, 130, status(CHAIN, swaps=swaps))
    page.evaluate("document.querySelector('#swaps .bar').kept = true; showVersions()")
    assert page.evaluate("document.querySelector('#swaps .bar').kept")
    assert texts(page, "#swaps .when")[0] == "31 s ago"


def test_the_latest_swaps_are_shown_and_the_others_on_demand(page: Page) -> None:
    load(page, *ELEMENTS, *VERSIONS)
    swaps = [swap(versions=[str(number)], began=number) for number in range(9)]
    remember(page, 100, status(CHAIN, swaps=swaps))
    page.evaluate("showVersions()")
    shown = (
        "[...document.querySelectorAll('#swaps .bar b')].map((x) => x.textContent.split(' ')[2])"
    )
    assert values(page, shown) == [["8", "7", "6", "5", "4", "3"]]
    page.evaluate("document.querySelector('#swaps .plain').click()")
    assert values(page, shown) == [["8", "7", "6", "5", "4", "3", "2", "1", "0"]]


def test_what_is_not_served_is_told_until_it_is(page: Page) -> None:
    load(page, *ELEMENTS, *VERSIONS)
    models = [
        {"name": "a", "version": "1", "state": "READY", "reason": ""},
        {"name": "a", "version": "2", "state": "UNAVAILABLE", "reason": "a wrong digest"},
        {"name": "b", "version": "", "state": "UNAVAILABLE", "reason": "not loaded"},
        {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]
    failed = [swap(model=name, state="failed", why="no memory") for name in "amn"]
    remember(page, 0, status(CHAIN, models=models, swaps=[*failed, swap(model="m")]))
    page.evaluate("showVersions()")
    assert texts(page, "#unserved .note") == [
        "a version 2 is not served: a wrong digest",
        "n version 3 in place of 2 is not served: no memory",
    ]
    remember(page, 1, status(CHAIN))
    page.evaluate("showVersions()")
    assert page.evaluate("byId('versioned').hidden")


def test_a_rollout_is_shown_with_its_steps_limits_and_what_both_versions_did(page: Page) -> None:
    load(page, *ELEMENTS, *VERSIONS)
    seen = {"answers": 900, "failed": 9, "p99": 0.01, "compared": 0, "differed": 0}
    new = {"answers": 40, "failed": 0, "p99": None, "compared": 200, "differed": 3}
    example = {"log_id": 7, "difference": "y differs", "answer": "<i>1</i>", "other": "2"}
    rolling = {
        "name": "m", "version": "2", "stable": "1", "state": "running", "step": "2", "steps": "3",
        "share": "25", "shares": ["5", "25", "50"], "hold": 300.0, "held": 12.4,
        "limits": {"error_rate": 0.01, "p99_ratio": 1.25, "disagreement": None, "samples": 100},
        "why": "there are 40 of 100 answers", "seen": {"stable": seen, "new": new},
        "examples": [example],
    }  # fmt: skip
    over = {**rolling, "name": None, "state": "taken back", "why": "9 of its 20 answers failed"}
    remember(page, 0, status(CHAIN, rollouts=[rolling, {**over, "examples": []}]))
    page.evaluate("showVersions()")
    assert texts(page, "#rollouts h3") == [
        "m: version 2 beside 1", "any name: version 2 in place of 1",
    ]  # fmt: skip
    assert texts(page, "#rollouts .steps")[0] == "✓ 5 %● 25 %50 %all"
    assert texts(page, "#rollouts tbody tr") == [
        "Answers90040at least 100", "Failed1.0 %0 %1.0 % more",
        "p9910.0 ms–1.25 times, 12.5 ms", "Differ–1.5 %–",
    ]  # fmt: skip
    assert texts(page, "#rollouts caption") == [
        "The step has lasted 12 s, and lasts at least 300 s"
    ]
    assert "✕ taken back: 9 of its 20 answers failed" in texts(page, "#rollouts p")
    assert texts(page, "#rollouts details pre") == ["<i>1</i>\n2"]
    page.evaluate("document.querySelector('#rollouts details').open = true")
    page.evaluate("showVersions()")
    assert page.evaluate("document.querySelector('#rollouts details').open")


# Ops.


def test_the_panel_shows_the_seats_of_an_op_and_its_steps(page: Page) -> None:
    load(page, *ELEMENTS, *OF_OPS)
    page.evaluate(f"ask = async () => ({answer(points(9, 4))})")
    for at, count in ((0, 10), (10, 30)):
        steps = {"count": count, "running": {"sum": 6 * count}, "seconds": {"sum": 0.002 * count}}
        seats = {"all": 16, "taken": 12}
        remember(page, at, status(graph(None, op("write", seats=seats, steps=steps))))
    page.evaluate("openOp('\\n1\\nwrite')")
    facts = dict(zip(texts(page, ".facts dt"), texts(page, ".facts dd"), strict=True))
    assert facts["Seats"] == "12 of 16 taken"
    assert (facts["Requests in a step"], facts["Time of a step"]) == ("6.0", "2.00 ms")
    assert not {"Workers", "Batches", "Requests in a batch", "Largest batch"} & {*facts}
    titles = texts(page, "#panel :is(h3, figcaption)")
    assert not [each for each in titles if "atch" in each], "a request at a seat is a batch of one"
    assert "Seats taken" in titles


def test_the_table_has_the_requests_in_a_step_of_an_op_with_seats(page: Page) -> None:
    load(page, *ELEMENTS, *OF_OPS, "table")
    for at, count in ((0, 10), (10, 30)):
        steps = {"count": count, "running": {"sum": 6 * count}, "seconds": {"sum": 0.002 * count}}
        seated = op("write", steps=steps, samples=count, batches=count)
        remember(page, at, status(graph(None, seated, op("b", samples=3 * count, batches=count))))
    page.evaluate("showTable()")
    assert texts(page, "#table td:nth-child(6)") == ["6.0 a step", "3.0 of 4"]


NODE = {"id": "ab", "address": "192.0.2.7", "host": "gpu-7"}
OTHER = {"id": "cd", "address": "192.0.2.8", "host": "192.0.2.8"}
WHY = "it has no place in the cluster: it wants 1 GPU (0 of 2 are free)"


def place(worker: int, state: str = "running", **changes: Any) -> dict[str, Any]:
    return {
        "engine": 0, "worker": worker, "state": state, "seconds": 200.0, "where": "", "node": None,
        "pid": None, "why": "", "wants": None, "possible": None, **changes,
    }  # fmt: skip


def lost(worker: int, **changes: Any) -> dict[str, Any]:
    return {
        "engine": 0, "worker": worker, "ago": 300.0, "where": "node ab, pid 9", "node": NODE,
        "pid": 9, "how": "signal SIGKILL", "back": None, **changes,
    }  # fmt: skip


def of_ray() -> dict[str, Any]:
    wants = {"why": WHY, "wants": {"GPU": 1}, "possible": True}
    places = [
        place(0, node=OTHER, where="node cd, pid 12", pid=12, seconds=7300.0),
        place(1, node=NODE, where="node ab, pid 13", pid=13),
        place(2, "waiting", **wants), place(3, "waiting", **wants, seconds=90.0),
        place(4, "waiting", why=f"{WHY}, which no node has", possible=False),
        place(5, "failed", why="<b>no file</b>"),
        place(6, "starting", node=NODE, where="node ab, pid 14", seconds=4.0),
    ]  # fmt: skip
    return op("shop/read", workers=7, places=places, lost=[lost(2), lost(0, ago=40.0, back=8.2)])


def test_workers_on_other_machines_are_shown_with_those_that_are_missing(page: Page) -> None:
    load(page, *ELEMENTS, *OF_OPS)
    local = op("shop/local", places=[place(0, where="pid 5", pid=5)], lost=[])
    remember(page, 0, status(graph("shop", op("shop/in"), local)))
    page.evaluate("showPlaces()")
    assert page.evaluate("byId('placed').hidden"), "all workers are on this machine"
    remember(page, 1, status(graph("shop", of_ray(), local)))
    page.evaluate("showPlaces()")
    assert not page.evaluate("byId('placed').hidden")
    assert texts(page, "#places tbody tr") == [
        "192.0.2.8read 0, pid 122 h", "gpu-7 (192.0.2.7)read 1, pid 133 min",
        "gpu-7 (192.0.2.7)read 6, starting4 s",
    ]  # fmt: skip
    assert texts(page, "#places .note") == [
        f"▽ read: workers 2, 3 not started for 3 min: {WHY}",
        f"✕ read: worker 4 not started for 3 min: {WHY}, which no node has",
        "✕ read: worker 5 failed for 3 min: <b>no file</b>",
    ]
    assert texts(page, "#places li") == [
        "40 s ago: read: worker 0 (node ab, pid 9): signal SIGKILL, back after 8 s",
        "5 min ago: read: worker 2 (node ab, pid 9): signal SIGKILL, not back",
    ]
    page.evaluate("document.querySelector('#places tr').kept = true; showPlaces()")
    assert page.evaluate("document.querySelector('#places tr').kept"), "nothing has changed"
    remember(page, 2, status(graph("shop", of_ray()), engines=2))
    page.evaluate("showPlaces()")
    assert texts(page, "#places tbody tr")[0] == "192.0.2.8read 0/0, pid 122 h"


def test_workers_are_readable_on_a_phone_and_the_page_does_not_jump(page: Page) -> None:
    load(page, *ELEMENTS, "theme", *OF_OPS, "callers")
    long = "a-host-with-a-long-name.of-a-cluster.example.internal"
    node = {"id": "ab", "address": "192.0.2.7", "host": long}
    caller = {"name": "ann", "requests": 1, "failed": 0, "refused": {}}
    far = of_ray()
    far["places"] += [place(7, node=node, where="node ab, pid 999999", pid=999_999)]

    def show(at: float, *ops: dict[str, Any]) -> float:
        remember(page, at, status(graph("shop", *ops), callers=[caller]))
        page.evaluate("showPlaces(), showCallers()")
        return float(page.evaluate("byId('calling').getBoundingClientRect().top"))

    for width in (360, 1280):
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        for theme in ("light", "dark"):
            page.evaluate(f"byId('theme').value = {theme!r}")
            page.evaluate("byId('theme').dispatchEvent(new Event('change'))")
            top = show(0, far)
            assert page.evaluate(CUT) == []
            assert page.evaluate("byId('places').scrollWidth <= byId('places').clientWidth")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            shot(page, f"places-{width}-{theme}")
            for each in far["places"]:
                each["seconds"] += 1.0
            assert show(1, far) == top
    well = op("shop/read", places=[place(0, where="pid 5", pid=5)], lost=[])
    show(2, well)
    assert not page.evaluate("byId('placed').hidden"), "what is below would move"
    assert texts(page, "#places > *") == ["All workers are on this machine."]
    page.call("Emulation.clearDeviceMetricsOverride")


def test_an_op_whose_workers_are_missing_has_a_state_of_its_own(page: Page) -> None:
    load(page, *ELEMENTS, "layers", *OF_OPS, "picture")
    states = [
        ("running", "waiting"), ("failed", "waiting"), ("running", "starting"), ("starting",),
    ]  # fmt: skip
    ops = [
        op(f"op{n}", workers=2, idle=2, places=[place(i, each) for i, each in enumerate(of)])
        for n, of in enumerate(states)
    ]
    remember(page, 0, status(graph(None, *ops)))
    found = [f"figures('\\n1\\nop{n}', interval()).state" for n in range(len(states))]
    assert values(page, *found) == ["short", "none", "idle", "idle"]
    page.evaluate(f"ask = async () => ({answer(points(9, 4))})")
    page.evaluate("openOp('\\n1\\nop0')")
    facts = dict(zip(texts(page, ".facts dt"), texts(page, ".facts dd"), strict=True))
    assert (facts["State"], facts["Workers"]) == ("▽ workers missing", "0 of 2 busy, 1 missing")
    assert texts(page, "#panel .note") == ["▽ op0: worker 1 not started for 3 min: "]
    remember(page, 1, status(graph(None, ops[0])))
    page.evaluate("showPicture()")
    assert texts(page, ".node.is-short text") == ["▽", "op0", "0/s", "1 missing", "busy 0/2"]


def test_the_panel_shows_an_op_and_is_closed(page: Page) -> None:
    load(page, *ELEMENTS, *OF_OPS)
    of_op = {"rate": 4, "errors": 0, "timeouts": 0, "p50": 100, "p99": 300}
    of_op |= {"wait_p50": 1, "wait_p99": 9, "waiting": 3, "busy": 1, "batch": 4}
    of_op = {name: [value] for name, value in of_op.items()}
    page.evaluate("var asked = []")
    found = json.dumps(points(9, 4, **{"shop/first": of_op}))
    page.evaluate(f"ask = async (path) => {{ asked.push(path); return {answer(found)}; }}")
    busy_chain(page)
    page.evaluate(f"openOp({FIRST!r})")
    assert values(page, "byId('panel').open", "byId('panel-title').textContent") == [
        True,
        "Op shop/first",
    ]
    facts = dict(zip(texts(page, ".facts dt"), texts(page, ".facts dd"), strict=True))
    assert facts["State"] == "▲ queue grows or stands"
    assert (facts["Requests"], facts["Workers"]) == (
        "4.0 per second, 40 in all",
        "2 of 2 busy",
    )
    assert "Padding" not in facts
    assert texts(page, "#panel tr") == [
        "queue10.0 ms4 %",
        "transfer5.00 ms2 %",
        "preprocess10.0 ms4 %",
        "process200 ms75 %",
        "postprocess40.0 ms15 %",
        "window990 %",
        "size110 %",
    ]
    assert page.evaluate("document.querySelector('.stack').nextElementSibling.tagName") == "TABLE"
    page.until("asked.length === 1")
    assert page.evaluate("asked[0]") == "ui/history?op=shop%2Ffirst"
    page.until("document.querySelector('#panel .chart') !== null")
    legends = ["ended 4.0errors 0timeouts 0", "p50 100 msp99 300 ms", "p50 1.00 msp99 9.00 ms"]
    assert texts(page, "#panel .chart .legend")[:3] == legends
    page.evaluate("refreshHistory('shop/first')")
    page.until("asked.length === 2")
    assert page.evaluate("asked[1]") == "ui/history?op=shop%2Ffirst&after=7"
    page.evaluate("byId('close').click()")
    page.until("opened === null && !byId('panel').open")


def open_picture(page: Page) -> None:
    load(page, *ELEMENTS, "layers", *OF_OPS, "picture")
    busy_chain(page)
    page.evaluate("showPicture()")


def test_the_picture_shows_states_rates_and_flows(page: Page) -> None:
    open_picture(page)
    labels = "[...document.querySelectorAll('.node')].map((x) => x.getAttribute('aria-label'))"
    first, last = page.evaluate(labels)
    assert first == (
        "shop/first: queue grows or stands, 4.0 per second, 3 requests in its queue, "
        "2 of 2 workers busy"
    )
    assert last.startswith("last: errors, 0 per second")
    assert texts(page, ".node text") == [
        *("▲", "first", "4.0/s", "queue 3", "busy 2/2"),
        *("■", "last", "0/s", "2 errors", "busy 0/1"),
    ]
    assert page.evaluate("document.querySelectorAll('.edge').length") == 3
    flows = "drawn.edges.filter((each) => each.element.matches('.flows')).map((each) => each.names)"
    assert values(page, flows) == [[["shop/first"]]]  # the edge from the request
    joined = "drawn.edges.map((each) => each.element.matches('.joins'))"
    for over, out in (("pointerover", "pointerout"), ("focusin", "focusout")):
        at = (
            "document.querySelector('.node .box').dispatchEvent(new Event('{}', {{bubbles: true}}))"
        )
        page.evaluate(at.format(over))
        assert values(page, joined) == [[True, True, False]]  # the edges of the first op
        page.evaluate(at.format(out))
        assert values(page, joined) == [[False, False, False]]
    page.evaluate("filter = 'last', showPicture()")
    assert page.evaluate("document.querySelector('.node.dim text.name').textContent") == "first"


COVERED = """
(() => {
  const boxes = [...document.querySelectorAll('.node .box')].map((each) => each.getBoundingClientRect());
  let covered = 0;
  for (const { element } of drawn.edges) {
    const at = element.getScreenCTM();
    const length = element.getTotalLength();
    for (let i = 1; i < 100; i++) {
      const { x, y } = element.getPointAtLength(length * i / 100).matrixTransform(at);
      if (boxes.some((box) => x > box.left + 1 && x < box.right - 1 && y > box.top + 1 && y < box.bottom - 1)) covered += 1;
    }
  }
  return covered;
})()
"""  # noqa: E501
"""How many points of edges are behind boxes of ops."""


@pytest.mark.parametrize(("ops", "width"), [(12, 1280), (12, 360), (60, 1280)])
def test_no_edge_is_hidden_behind_an_op(page: Page, ops: int, width: int) -> None:
    chosen = random.Random(ops)
    made: list[dict[str, Any]] = []
    for number in range(ops):
        near = [each["name"] for each in made[-6:]]
        inputs = chosen.sample(near, min(len(near), chosen.randint(0, 3)))
        reads = not inputs or chosen.random() < 0.2
        made.append(op(f"op_{number}", *inputs, reads_request=reads))
    used = {name for each in made for name in each["inputs"]}
    leaves = [each["name"] for each in made if each["name"] not in used]
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=900, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    load(page, *ELEMENTS, "layers", *OF_OPS, "picture")
    remember(page, 0, status(graph("g", *made, op("last", *leaves))))
    page.evaluate("showPicture(), zoom = 1, scale()")
    edges = sum(len(each["inputs"]) + each["reads_request"] for each in made) + len(leaves) + 1
    assert page.evaluate("document.querySelectorAll('.edge').length") == edges
    assert page.evaluate("formOf(past[0].status)[1] === 't'") == (width == 360)
    assert page.evaluate(COVERED) == 0
    page.call("Emulation.clearDeviceMetricsOverride")


def test_keys_move_in_the_picture_and_open_an_op(page: Page) -> None:
    open_picture(page)
    page.evaluate("document.querySelector('.node[tabindex=\"0\"]').focus()")
    page.evaluate(
        "var press_ = (key) => document.activeElement.dispatchEvent("
        "new KeyboardEvent('keydown', {key, bubbles: true}))"
    )
    focused = "document.activeElement.dataset.key"
    assert page.evaluate(focused) == FIRST
    for key, at in (("ArrowRight", LAST), ("ArrowRight", LAST), ("Home", FIRST), ("End", LAST)):
        page.evaluate(f"press_({key!r})")
        assert page.evaluate(focused) == at
    assert page.evaluate("document.querySelectorAll('.node[tabindex=\"0\"]').length") == 1
    page.evaluate("press_('Enter')")
    assert values(page, "opened", "byId('panel').open") == [LAST, True]


def test_the_picture_is_drawn_again_only_for_another_form(page: Page) -> None:
    open_picture(page)
    page.evaluate("var node = document.querySelector('.node')")
    remember(page, 111, status(CHAIN, answered=50))
    page.evaluate("showPicture()")
    assert page.evaluate("node.isConnected")
    page.evaluate("document.querySelector('[data-zoom=in]').click()")
    assert page.evaluate("zoom === drawn.scale && zoom > 1")
    remember(page, 112, status(graph("shop", op("shop/first")), answered=50))
    page.evaluate("showPicture()")
    assert values(page, "node.isConnected", "drawn.nodes.size") == [False, 1]


def test_the_table_is_sorted_by_a_column_and_filtered(page: Page) -> None:
    load(page, *ELEMENTS, *OF_OPS, "table")
    busy_chain(page)
    page.evaluate("showTable()")
    assert texts(page, "#table tbody tr") == [
        "first▲ queue4.0310.0 ms4.0 of 45.00 ms10.0 ms200 ms40.0 ms2 of 20",
        "last■ errors00––––––0 of 12",
    ]
    page.evaluate("document.querySelector('[data-column=\"11\"]').click()")  # errors
    assert texts(page, "#table tbody th") == ["last", "first"]
    page.evaluate("document.querySelector('[data-column=\"11\"]').click()")
    assert texts(page, "#table tbody th") == ["first", "last"]
    assert page.evaluate("document.querySelector('[aria-sort=ascending]').textContent") == "Errors"
    page.evaluate("filter = 'last', showTable()")
    assert texts(page, "#table tbody th") == ["last"]


def test_the_ops_are_shown_as_a_picture_or_a_table(page: Page) -> None:
    load(
        page,
        *ELEMENTS,
        "layers",
        "service",
        "links",
        "panel",
        "access",
        "trends",
        "op",
        "picture",
        "table",
        "graphs",
    )
    page.evaluate("byId('as-table').click()")  # before the first answer
    busy_chain(page)
    page.evaluate("showOps()")
    assert values(page, "byId('picture').hidden", "byId('table').hidden") == [True, False]
    page.evaluate("byId('as-picture').click()")
    assert values(page, "byId('picture').hidden", "byId('table').hidden") == [False, True]
    page.evaluate("byId('filter').value = ' FIRST'")
    page.evaluate("byId('filter').dispatchEvent(new Event('input'))")
    assert values(page, "byId('matches').textContent", "byId('graphs-title').textContent") == [
        "1 of 2 ops",
        "Graph",
    ]


# Requests.


def timeline(number: str | None = "7", **changes: Any) -> dict[str, Any]:
    """A request of 100 ms, which has waited in the queue of its op."""
    parts = [("queue", 20, 50), ("process", 50, 70), ("process", 70, 80)]
    batch = {
        "number": 3, "worker": 0, "closed": "size", "rows": 4, "requests": ["7", "8"],
        "elements": 10, "filled_in": 5, "timed_out": False, "errors": 1, "beside": ["9"],
    }  # fmt: skip
    step = {
        "op": "first", "attempt": 2, "batch": batch,
        "parts": [{"name": name, "begin": begin, "end": end} for name, begin, end in parts],
    }  # fmt: skip
    return {
        "id": number, "ms": 100, "ago": 3, "method": "POST", "route": "/shop", "graph": "shop",
        "status": 200, "error": None, "text": None, "engine": 0, "log_id": "5", "longest": None,
        "traceparent": None, "error_type": None, "exception": None, "caller": "",
        "unpack": 5, "entry": 15, "ops": 60, "between": 10, "pack": 10,
        "steps": [step], **changes,
    }  # fmt: skip


def load_timeline(page: Page, request: dict[str, Any]) -> None:
    load(page, *ELEMENTS, "service", "links", "panel", "access", "timeline")
    page.evaluate(f"showTimeline({json.dumps(request)})")


def test_a_timeline_has_sums_lanes_and_steps(page: Page) -> None:
    load_timeline(page, timeline())
    assert texts(page, "#sums td:nth-child(3)") == ["5 %", "15 %", "60 %", "10 %", "10 %", "100 %"]
    assert texts(page, ".lane > span:first-child") == ["", "unpack", "first (attempt 2)", "pack"]
    assert texts(page, ".axis .rail span") == ["0 ms", "25.0 ms", "50.0 ms", "75.0 ms", "100 ms"]
    segments = "[...document.querySelectorAll('.seg')].map((x) => [x.style.left, x.style.width])"
    assert page.evaluate(segments) == [
        ["0%", "5%"], ["5%", "15%"], ["20%", "30%"], ["50%", "20%"], ["70%", "10%"], ["90%", "10%"],
    ]  # fmt: skip
    legend = ["entry: it waited until the graph had room", "queue", "process"]
    assert texts(page, ".legend li") == legend
    assert texts(page, "#panel .scroll tbody tr") == [
        "first attempt 230.0 ms30.0 msNo. 3, worker 0, closed by size, 2 requests, 4 rows"
        ", padding 50 %, 1 of 2 failedrequests 7 8at the same time in this worker: 9"
    ]


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        ((5, 25, 40), None, "5, the first after 25.0 ms, then 40.0 a second; complete"),
        ((1, 25, 0), "cancelled", "1, the first after 25.0 ms; ended by cancelled"),
    ],
)
def test_an_answer_in_pieces_is_told_with_its_end(
    page: Page, stream: tuple[int, int, int], error: str | None, text: str
) -> None:
    told = dict(zip(("pieces", "first", "rate"), stream, strict=True))
    load_timeline(page, timeline(stream=told, error=error))
    assert f"Pieces{text}" in texts(page, ".facts div")
    page.evaluate(f"showTimeline({json.dumps(timeline())})")
    assert not any(each.startswith("Pieces") for each in texts(page, ".facts div"))


def test_a_refused_request_has_its_text_and_no_steps(page: Page) -> None:
    text = "<b>full</b>"
    load_timeline(page, timeline(None, error="busy", text=text, steps=None))
    assert texts(page, "#panel h2, #panel .note") == ["A refused request", text]
    assert "✕\u00a0busy" in texts(page, ".facts dd")
    assert page.evaluate("document.querySelector('#panel :is(b, .gantt)')") is None


def test_a_failed_request_has_the_type_and_the_traceback_of_its_exception(page: Page) -> None:
    traceback = "Traceback (most recent call last):\n  File <b>\nValueError: <i>told to</i>"
    raised = {"type": "ValueError", "op": "first", "traceback": traceback}
    failed = timeline(error="hook_failed", error_type="ValueError", exception=raised, caller="ann")
    load_timeline(page, failed)
    assert "Callerann" in texts(page, ".facts div")
    assert "✕\u00a0hook_failed (ValueError)" in texts(page, ".facts dd")
    assert "ValueError in first" in texts(page, "#panel h3")
    assert texts(page, "#panel pre") == [traceback]
    assert page.evaluate("document.querySelector('#panel-body :is(b, i:not([class]))')") is None
    page.evaluate(
        f"showTimeline({json.dumps({**failed, 'exception': {**raised, 'traceback': ''}})})"
    )
    assert texts(page, "#panel pre") == []
    assert "Its traceback is not known." in texts(page, "#panel p")


def test_requests_are_listed_with_a_button_for_more(page: Page) -> None:
    load(page, *ELEMENTS, "service", "links", "panel", "access", "timeline", "requests")
    slow = timeline("1", ms=200, longest={"op": "first", "part": "queue", "ms": 30})
    refused = timeline(None, error="busy", status=503)
    found = {"slowest": [slow], "failed": [], "latest": [refused, *[timeline()] * 11]}
    page.evaluate(f"lists = {json.dumps(found)}, showRequests()")
    assert texts(page, "#requests tbody tr") == [
        "1200 ms✓\u00a0200first: queue, 30.0 msPOST /shop (shop)3 s ago"
    ]
    page.evaluate("document.querySelector('[data-list=failed]').click()")
    assert texts(page, "#requests") == ["No request has failed."]
    page.evaluate("document.querySelector('[data-list=latest]').click()")
    more = "document.querySelector('[data-request=all]')"
    assert values(page, f"{more}.textContent") == ["Show all 12"]
    assert page.evaluate("document.querySelectorAll('#requests tbody tr').length") == 10
    page.evaluate(f"{more}.focus(), {more}.click()")
    assert page.evaluate("document.querySelectorAll('#requests tbody tr').length") == 12
    assert values(page, "document.activeElement.textContent") == ["Show fewer"]
    page.evaluate("document.querySelector('.bad-row button').click()")  # it has no id to ask for
    assert texts(page, "#panel h2") == ["A refused request"]


def test_what_the_panel_shows_is_named_by_the_address(page: Page) -> None:
    open_picture(page)
    page.evaluate(f"openOp({FIRST!r})")
    assert page.evaluate("location.hash") == "#op=shop/1/shop%2Ffirst"
    assert values(page, "namedByAddress()") == [["op", "shop", "1", "shop/first"]]
    page.evaluate("openOp('shop\\n2\\n<b>')")
    assert texts(page, "#panel h2, #panel .note") == [
        "Op <b>",
        "There is no op <b> in version 2 of shop.",
    ]
    page.evaluate("byId('close').click()")
    page.until("location.hash === ''")
    for other in ("#", "#op=", "#op=%E0", "#other=1", "#op"):
        page.evaluate(f"history.replaceState(null, '', {other!r})")
        assert values(page, "namedByAddress()") == [[]]


def test_the_list_of_requests_does_not_move_while_one_of_them_is_pointed_at(page: Page) -> None:
    load(page, *ELEMENTS, "service", "links", "panel", "access", "timeline", "requests")
    found = json.dumps({"slowest": [timeline()], "failed": [], "latest": []})
    page.evaluate(f"var asked = 0, found = {found}")
    page.evaluate(f"ask = async () => {{ asked += 1; return {answer('found')}; }}")

    def refresh(held: bool, number: str) -> None:
        page.evaluate(f"found.slowest[0].id = {number!r}, refreshLists(), 0")
        page.until(
            f"asked === {number} && document.querySelector('caption')?.textContent.includes('held')"
            f" === {json.dumps(held)}"
        )

    refresh(False, "1")
    assert texts(page, "#requests tbody th") == ["1"]
    page.evaluate("byId('requests').scrollIntoView()")
    box = "document.querySelector('#requests tbody').getBoundingClientRect()"
    x, y = page.evaluate(f"[{box}.x + 5, {box}.y + 5]")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.evaluate("matchMedia = () => ({ matches: true })")  # this browser has no pointer
    refresh(True, "2")
    assert texts(page, "#requests tbody th") == ["1"]
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
    refresh(False, "3")
    assert texts(page, "#requests tbody th") == ["3"]


def test_the_answer_for_a_request_does_not_replace_what_was_opened_after_it(page: Page) -> None:
    load(page, *ELEMENTS, "service", "links", "panel", "access", "timeline")
    page.evaluate("var asked = [], late = false")
    page.evaluate("ask = (path) => new Promise((done) => { asked.push([path, done]); })")
    page.evaluate("openRequest('7').then(() => { late = true; }), openRequest('8'), 0")
    assert page.evaluate("asked.map(([path]) => path)") == ["ui/requests/7", "ui/requests/8"]
    page.evaluate(f"asked[1][1]({answer(timeline('8'))})")
    page.until("byId('panel-title').textContent === 'Request 8'")
    page.evaluate(f"asked[0][1]({answer(timeline('7'))})")
    page.until("late")
    assert texts(page, "#panel h2") == ["Request 8"]
    assert page.evaluate("location.hash") == "#request=8"


# With a service.


UNKNOWN = (404, {"message": "unknown"})


class Service:
    """Answers the page's queries with written answers.

    Attributes:
        answers: status and value by method and path, without a query.
        asked: method, path, authorization and body of each query that was answered from them.
    """

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, str | None, bytes]] = []
        self.url = ""


@contextmanager
def serving() -> Iterator[Service]:
    service = Service()
    body, fields = page_text("ui/page.html")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/ui":
                self.send_response(200)
                for name, value in fields:
                    self.send_header(name.decode(), value.decode())
                self.end_headers()
                self.wfile.write(body)
            else:
                self.answer()

        def do_POST(self) -> None:
            self.answer()

        def answer(self) -> None:
            key = f"{self.command} {self.path}"
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            service.asked.append((key, self.headers.get("authorization"), sent))
            code, value = service.answers.get(key.partition("?")[0], UNKNOWN)
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(value if isinstance(value, bytes) else json.dumps(value).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def service(page: Page) -> Iterator[Service]:
    with serving() as found:
        state = {"at": 1.0, "status": status(CHAIN)}
        found.answers["GET /ui/state"] = 200, state
        found.answers["GET /ui/history"] = 200, points(100, 3, 5)
        found.answers["GET /ui/requests"] = 200, {"slowest": [], "failed": [], "latest": []}
        yield found
        page.open("about:blank")
        page.until("location.href === 'about:blank'")


def test_the_page_shows_a_service_within_its_security_policy(page: Page, service: Service) -> None:
    page.open(f"{service.url}/ui")
    page.until("document.querySelectorAll('.node').length === 2")
    page.until("lists !== null && byId('route').value === '/shop'")
    assert values(page, "byId('title').textContent", "byId('health').textContent") == [
        "shop",
        "● ready",
    ]
    assert [each for each in page.console_errors if "openapi.json" not in each] == []
    page.evaluate(
        "var denied = 0;"
        "addEventListener('securitypolicyviolation', () => { denied += 1; });"
        "document.body.append(make('script', {}, 'var injected = 1'))"
    )
    page.until("denied === 1")
    assert page.evaluate("typeof injected") == "undefined"


def test_a_link_opens_an_op_or_a_request_and_back_returns(page: Page, service: Service) -> None:
    service.answers["GET /ui/requests/7"] = 200, timeline()
    page.open(f"{service.url}/ui#request=7")
    page.until(
        "document.getElementById('panel')?.open && byId('panel-title').textContent === 'Request 7'"
    )
    page.evaluate("openOp([...drawn.nodes.keys()][0])")
    link = page.evaluate("location.href")
    assert link == f"{service.url}/ui#op=shop/1/shop%2Ffirst"
    page.evaluate("history.back()")
    page.until("byId('panel-title').textContent === 'Request 7'")
    page.evaluate("byId('close').click()")
    page.until("location.hash === '' && !byId('panel').open")
    page.evaluate("history.back()")
    page.until("byId('panel').open && byId('panel-title').textContent === 'Request 7'")
    page.open("about:blank")
    page.until("location.href === 'about:blank'")
    page.open(link)
    page.until("document.getElementById('panel')?.open === true")
    assert texts(page, "#panel h2") == ["Op shop/first"]
    page.evaluate("location.hash = ''")
    page.until("!byId('panel').open")


def test_the_theme_is_kept_for_the_next_visit(page: Page, service: Service) -> None:
    page.open(f"{service.url}/ui")
    page.until("typeof byId !== 'undefined' && document.readyState === 'complete'")
    page.evaluate("byId('theme').value = 'dark'")
    page.evaluate("byId('theme').dispatchEvent(new Event('change')), window.old = true")
    assert page.evaluate("document.documentElement.style.colorScheme") == "dark"
    page.open(f"{service.url}/ui")
    page.until("window.old === undefined && document.readyState === 'complete'")
    assert values(page, "byId('theme').value", "document.documentElement.style.colorScheme") == [
        "dark",
        "dark",
    ]


def test_without_access_the_page_asks_for_the_token_or_says_why(
    page: Page, service: Service
) -> None:
    good = service.answers["GET /ui/state"]
    service.answers["GET /ui/state"] = 401, {"message": "no token"}
    page.open(f"{service.url}/ui")
    page.until("document.getElementById('refused-text')?.textContent === 'no token.'")
    page.open("about:blank")
    page.until("location.href === 'about:blank'")
    service.asked.clear()
    page.open(f"{service.url}/ui#token=a%20wrong%20one")
    page.until("document.getElementById('refused-text')?.textContent === 'The token is wrong.'")
    assert values(page, "location.hash", "byId('main').hidden", "byId('login').hidden") == [
        "",
        True,
        False,
    ]
    assert service.asked[0][1] == "Bearer a wrong one"
    service.answers["GET /ui/state"] = 403, {"message": "only for this machine"}
    page.evaluate("byId('token').value = 'right', byId('login').requestSubmit()")
    page.until("byId('refused-text').textContent === 'only for this machine.'")
    assert page.evaluate("byId('login').hidden")
    service.answers["GET /ui/state"] = good
    page.evaluate("byId('token').value = 'right', byId('login').requestSubmit()")
    page.until("!byId('main').hidden && byId('refused').hidden && token === 'right'")


def test_a_request_is_sent_and_its_answer_shown(page: Page, service: Service) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    content = {"application/json": {"schema": schema}}
    described = {"example": {"value": {"key": ["words"]}}}
    paths = {
        "/{name}/{method}": {"post": {"requestBody": {"content": content}}},
        "/shop": {
            "post": {
                "requestBody": {
                    "content": {"application/json": {"schema": {}, "examples": described}}
                }
            }
        },
        "/livez": {"get": {}},
    }
    service.answers["GET /openapi.json"] = 200, {"info": {"title": "Flowers"}, "paths": paths}
    service.answers["POST /shop"] = 200, {"y": 1}
    service.answers["POST /any/prediction"] = 500, b"not JSON"
    page.open(f"{service.url}/ui")
    page.until("document.title === 'Flowers live' && byId('route').value === '/shop'")
    assert page.evaluate("routes.map((each) => each.path)") == ["/any/prediction", "/shop"]
    assert json.loads(page.evaluate("byId('body').value")) == {"key": ["words"]}
    page.evaluate("byId('send').requestSubmit()")
    page.until("document.querySelector('#answer .result') !== null")
    assert texts(page, "#answer .status, #answer .result") == ["✓ 200 OK", '{\n  "y": 1\n}']
    page.evaluate("byId('its-timeline').click()")
    page.until("document.querySelector('#panel .note')?.textContent === 'unknown'")
    page.evaluate("byId('close').click()")
    page.evaluate("byId('route').value = '/any/prediction'")
    page.evaluate("byId('route').dispatchEvent(new Event('change'))")
    assert json.loads(page.evaluate("byId('body').value")) == {"x": 0}
    page.evaluate("byId('send').requestSubmit()")
    page.until("document.querySelector('#answer .bad') !== null")
    assert texts(page, "#answer .result") == ["not JSON\n(this is no JSON)"]


def test_a_page_that_is_opened_now_shows_the_past(page: Page, service: Service) -> None:
    page.open(f"{service.url}/ui")
    page.until("document.querySelector('#trends .legend')?.textContent.startsWith('answered 5.0')")
    asked = [key for key, *_ in service.asked if "history" in key]
    assert asked == ["GET /ui/history?"]
    page.evaluate("historyAt = -HISTORY_EVERY")
    service.answers["GET /ui/history"] = 200, points(101, 6, 7)
    page.until("document.querySelector('#trends .legend').textContent.startsWith('answered 7.0')")
    assert [key for key, *_ in service.asked if "history" in key][1] == "GET /ui/history?after=99"
    assert values(page, "stored.service.rate") == [[3, 6, 7]]


@pytest.mark.parametrize("keyed", [True, False])
def test_routes_get_the_readers_key_only_if_they_need_one(
    page: Page, service: Service, keyed: bool
) -> None:
    schemes = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if keyed else {}
    description = {"info": {"title": "Shop"}, "paths": {}, "components": schemes}
    service.answers["GET /openapi.json"] = 200, description
    service.answers["POST /shop"] = 200, {"y": 1}
    page.open(f"{service.url}/ui#token=a-key")
    page.until("document.title === 'Shop live' && byId('route').value === '/shop'")
    page.evaluate("byId('send').requestSubmit()")
    page.until("document.querySelector('#answer .result') !== null")
    given = {key: authorization for key, authorization, _ in service.asked}
    assert given["GET /openapi.json"] == "Bearer a-key"
    assert given["POST /shop"] == ("Bearer a-key" if keyed else None)


def test_the_page_follows_the_service_and_pauses(page: Page, service: Service) -> None:
    page.open(f"{service.url}/ui")
    page.until("document.getElementById('health')?.textContent === '● ready'")
    service.answers["GET /ui/state"] = 503, {"message": "busy"}
    page.until("byId('health').textContent === '✕ disconnected, retrying'")
    assert page.evaluate("document.body.classList.contains('gone')")
    service.answers["GET /ui/state"] = 200, {"at": 2.0, "status": status(CHAIN, answered=9)}
    page.until("document.querySelector('.tile .more').textContent.startsWith('9 answered')")
    assert not page.evaluate("document.body.classList.contains('gone')")
    page.evaluate("byId('pause').click()")
    assert values(page, "byId('health').textContent", "byId('pause').ariaPressed") == [
        "‖ paused",
        "true",
    ]
    page.until("!running")
    service.answers["GET /ui/state"] = 200, {"at": 3.0, "status": status(answered=9, answers=None)}
    page.evaluate("byId('pause').click()")
    page.until("byId('health').textContent.startsWith('✕ not shown: ')")
