"""The version, known without the metadata of the installed distribution, `penstock-serving`."""

from typing import Final

VERSION: Final = "0.2.0"
