from pathlib import Path

import pytest

from tests.services.transcript import numbers_in, output_of, shape_of, shown_like

README = """
# Title

```
$ start me
```

```python
price [[1.5 ]] -> 2e-05
```
"""


def test_numbers_are_read_as_numpy_writes_them() -> None:
    assert numbers_in("[[-1. ] [2.5e-05, 3]]") == [-1.0, 2.5e-05, 3.0]


def test_numbers_and_blanks_do_not_change_the_shape() -> None:
    assert shape_of("[[1.25]\n [2. ]]") == shape_of("[[-3e-01] [77]]") != shape_of("[1 2]")


def test_the_block_of_the_same_shape_is_found(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README)
    assert shown_like(readme, "price [[7]] -> 8\n") == "price [[1.5 ]] -> 2e-05\n"


def test_a_text_that_is_not_shown_fails_and_is_named(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(README)
    with pytest.raises(AssertionError, match="shows nothing like:\ncost 7"):
        shown_like(readme, "cost 7")


def test_a_script_runs_in_its_own_folder_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:])")
    assert output_of(script, "a", "b") == f"{tmp_path} ['a', 'b']\n"


def test_a_script_that_fails_fails_the_test_with_its_words(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text("import sys\nsys.exit('no server there')")
    with pytest.raises(AssertionError, match="ended with 1:\nno server there"):
        output_of(script)
