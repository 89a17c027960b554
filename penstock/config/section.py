"""What every mapping of ``config.yml`` has in common."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of ``config.yml``. ``never_blank``: keys that may be left out, but not empty."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
    never_blank: ClassVar[frozenset[str]] = frozenset()
