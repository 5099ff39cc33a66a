from __future__ import annotations

import math

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.values import flag, number, whole


def refusal(check, *args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        check(*args, **kwargs)
    return str(caught.value)


def test_what_fits_passes():
    whole("x", 1)
    whole("x", np.int64(0), 0)
    whole("x", None, null="all")
    number("x", 0)
    number("x", np.float32(0.5), above=0, at_most=0.5)
    number("x", None, null="")
    flag("x", False)


@pytest.mark.parametrize("value", ["abc", 0, -32, 1.0, True])
def test_whole_numbers(value):
    assert refusal(whole, "model.dim", value) == (
        f"model.dim={value}: give a whole number, 1 or more"
    )


@pytest.mark.parametrize("value", ["hot", 0, 1.5, math.nan, math.inf, False, [1]])
def test_numbers(value):
    assert refusal(number, "top_p", value, above=0, at_most=1) == (
        f"top_p={value}: give a number above 0, at most 1"
    )


def test_the_cure_names_the_range_and_what_null_does():
    assert refusal(number, "p", 1, below=1) == "p=1: give a number, 0 or more, below 1"
    assert refusal(whole, "n", 2, 3, null="all").endswith(
        "a whole number, 3 or more, or null for all"
    )
    assert refusal(whole, "n", None) == "n=null: give a whole number, 1 or more"
    assert refusal(flag, "report", "maybe") == "report=maybe: give true or false"
