"""The public names of ``paddle-serving-app``: ``LocalPredictor`` and the readers."""

from penstock_paddle import refuse_originals

refuse_originals()
