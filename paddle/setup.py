"""Gives the distribution its description: the README without pictures and links to files of the
repository.

On a package index they lead nowhere, since the files are not there. Everything else is in
``pyproject.toml``.
"""

import re
from pathlib import Path

from setuptools import setup

# The text of a link may have a line break, and the target of ours no space.
PICTURE = re.compile(r"!\[[^\]]+\]\((?!https?://)[^)\s]+\)\n*")
LINK_TO_A_FILE = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)\s]+\)")

readme = PICTURE.sub("", Path(__file__).with_name("README.md").read_text())
setup(
    long_description=LINK_TO_A_FILE.sub(r"\1", readme),
    long_description_content_type="text/markdown",
)
