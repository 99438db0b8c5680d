"""Decoders of bytes from outside answer a value or an error of ours, for any bytes and for odd values in any field."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from decoders import DECODERS, Decoder, escaped, odd_values

_VALUE = re.compile(rb'(?<=":)("(?:[^"\\]|\\.)*"|[-\w.]+)')


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_odd_values_in_every_field_are_answered(decoder: Decoder) -> None:
    for seed in decoder.seeds:
        for found in _VALUE.finditer(seed[:2_000]):
            for odd in odd_values():
                assert escaped(decoder, seed[: found.start()] + odd + seed[found.end() :]) is None
        assert escaped(decoder, b"\xef\xbb\xbf" + seed) is None
        assert escaped(decoder, seed + b"\0") is None


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_are_answered(decoder: Decoder, data: st.DataObject) -> None:
    seed = bytearray(data.draw(st.sampled_from(decoder.seeds)))
    for _ in range(data.draw(st.integers(0, 4))):
        at, until = (data.draw(st.integers(0, len(seed))) for _ in range(2))
        seed[min(at, until) : max(at, until)] = data.draw(st.binary(max_size=8))
    assert escaped(decoder, data.draw(st.binary(max_size=40)) if data.draw(st.booleans()) else bytes(seed)) is None
