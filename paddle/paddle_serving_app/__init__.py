"""The names of ``paddle-serving-app``: what ops and clients prepare their data with."""

from penstock_paddle import refuse_originals

refuse_originals()
