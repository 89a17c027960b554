"""docs/rfc.md names every section that has cases, with their files."""

import re
from pathlib import Path

from tests.documents import ROOT, rows_of, section
from tests.rfc import (
    test_grpc_client,
    test_grpc_server,
    test_rfc7541,
    test_rfc9113_3_4_framing,
    test_rfc9113_5_streams,
    test_rfc9113_6_7_frames,
    test_rfc9113_8_messages,
    test_rfc9113_10_limits,
)

PAGE = (ROOT / "docs" / "rfc.md").read_text()
MODULES = {
    "RFC 9113": [
        test_rfc9113_3_4_framing,
        test_rfc9113_5_streams,
        test_rfc9113_6_7_frames,
        test_rfc9113_8_messages,
        test_rfc9113_10_limits,
    ],
    "RFC 7541": [test_rfc7541],
}
GRPC = [test_grpc_server, test_grpc_client]


def test_the_page_has_each_section_with_its_files() -> None:
    for rfc, modules in MODULES.items():
        tested = {
            (match[0], Path(module.__file__).name)
            for module in modules
            for case in module.table.cases
            if (match := re.match(r"[\d.]+", case.name))
        }
        shown = {(row[0], row[2].strip("`")) for row in rows_of(section(PAGE, rfc))}
        assert shown == tested


def test_the_page_has_each_part_of_the_grpc_documents_with_its_files() -> None:
    tested = {
        (case.name.partition(":")[0], Path(module.__file__).name)
        for module in GRPC
        for case in module.table.cases
    }
    rows = rows_of(section(PAGE, "gRPC"))
    shown = {(row[0], name) for row in rows for name in re.findall(r"test_\w+\.py", row[2])}
    assert shown == tested


def test_every_file_in_the_page_exists() -> None:
    named = re.findall(r"`(?:tests/rfc/)?(test_\w+\.py)`", PAGE)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / "tests/rfc" / name).is_file()] == []


def test_case_names_are_unique() -> None:
    for module in (*GRPC, *(module for modules in MODULES.values() for module in modules)):
        names = [case.name for case in module.table.cases]
        assert len(names) == len(set(names))
