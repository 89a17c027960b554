"""The caller's timeout, ``grpc-timeout``: at most eight digits and a unit."""

from __future__ import annotations

import math
from typing import Final

from penstock.protocols.grpc.status import GrpcError
from penstock.protocols.status import GrpcCode

_MOST_DIGITS: Final = 8
_MOST: Final = 10**_MOST_DIGITS - 1
_SECONDS = {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0, b"M": 60.0, b"H": 3600.0}


def parse_timeout(raw: bytes) -> float:
    """Decode a timeout to seconds.

    Raises:
        GrpcError: the timeout is malformed.
    """
    digits, unit = raw[:-1], _SECONDS.get(raw[-1:])
    if unit is None or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise GrpcError(GrpcCode.INVALID_ARGUMENT, "malformed grpc-timeout")
    return int(digits) * unit


def encode_timeout(seconds: float) -> bytes:
    """Encode seconds in the finest unit that fits, rounded up; at least one nanosecond."""
    for unit, length in _SECONDS.items():
        if seconds <= _MOST * length:
            # The tolerance keeps 0.1 s from becoming 100000001n by an error in the last bit.
            return b"%d%b" % (max(1, math.ceil(seconds / length - 1e-6)), unit)
    return b"%dH" % _MOST
