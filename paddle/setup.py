"""Gives the distribution its description: the README without links to files of the repository.

On a package index such links lead nowhere, since the files are not there. Everything else is in
``pyproject.toml``.
"""

import re
from pathlib import Path

from setuptools import setup

# The text of a link may have a line break, and the target of ours no space.
LINK_TO_A_FILE = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)\s]+\)")

setup(
    long_description=LINK_TO_A_FILE.sub(r"\1", Path(__file__).with_name("README.md").read_text()),
    long_description_content_type="text/markdown",
)
