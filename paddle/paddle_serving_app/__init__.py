"""The public names of ``paddle-serving-app``: ``LocalPredictor`` and the readers."""

from penstock_paddle import ORIGINAL_VERSION, refuse_originals

refuse_originals()

__version__ = ORIGINAL_VERSION
