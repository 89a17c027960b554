"""The names of ``paddle-serving-client`` for Penstock's clients."""

from penstock_paddle import refuse_originals

refuse_originals()
