"""The count of bytes of decoded pictures."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image as Pillow

from penstock.door.budget import ByteBudget, Reservation
from penstock.errors import ServiceBusy
from penstock.typed.arrays import Image
from penstock.typed.decoded import DECODED, DecodedBytes


def test_bytes_are_counted_while_a_picture_is_decoded_and_until_its_array_is_freed() -> None:
    decoded = DecodedBytes()
    with decoded.decoding(100):
        assert decoded.used == 100
        array = decoded.keep(np.zeros(30, np.uint8))
    view = array[5:]
    del array
    assert decoded.used == 30
    del view
    assert decoded.used == 0


def test_a_picture_that_does_not_fit_is_refused_for_now_or_for_ever() -> None:
    decoded = DecodedBytes()
    decoded.share(100, lambda: 30)
    with decoded.decoding(70):
        with pytest.raises(ServiceBusy), decoded.decoding(1):
            pass
        assert decoded.used == 70
    with pytest.raises(ValueError, match="max_inflight_bytes"), decoded.decoding(101):
        pass
    assert decoded.used == 0


def test_bodies_and_pictures_have_one_limit() -> None:
    decoded = DecodedBytes()
    budget = ByteBudget(100, decoded)
    with decoded.decoding(90):
        with pytest.raises(ServiceBusy):
            Reservation(budget).take(11)
        with pytest.raises(ServiceBusy):
            Reservation(budget).take_small(21)
        Reservation(budget).take(10)
    Reservation(budget).take(90)


def test_the_pixels_of_an_image_are_counted_before_it_is_decoded() -> None:
    out = io.BytesIO()
    Pillow.new("RGB", (500, 400)).save(out, "PNG")
    before = DECODED.used
    picture = Image().decode(out.getvalue())
    assert DECODED.used - before == picture.nbytes == 600_000
    limit, others = DECODED._limit, DECODED._others
    DECODED.share(3_000_000, lambda: 700_000)
    try:
        with pytest.raises(ServiceBusy):
            Image().decode(out.getvalue())
        DECODED.share(2_000_000)
        with pytest.raises(ValueError, match=re.escape("takes 2400000 bytes")):
            Image().decode(out.getvalue())
    finally:
        DECODED.share(limit or 1 << 62, others)
    assert DECODED.used - before == picture.nbytes
