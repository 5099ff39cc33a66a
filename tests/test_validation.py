import math
import pickle

import pytest

from musicgen.errors import ParameterError, UserError, parameter_of
from musicgen.validation import (
    check_bool,
    check_choice,
    check_float,
    check_int,
    check_schema,
    check_seed,
    check_settings,
)


def refusal(check, *args, **kwargs) -> str:
    with pytest.raises(ParameterError) as caught:
        check(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("value", ["abc", 0, -32, 1.0, True])
def test_integers(value):
    assert refusal(check_int, "dim", value) == f"dim={value}: expected an integer >= 1"


@pytest.mark.parametrize("value", ["hot", 0, 1.5, math.nan, math.inf, False, [1]])
def test_numbers(value):
    assert refusal(check_float, "top_p", value, above=0, maximum=1) == (
        f"top_p={value}: expected a number > 0 and <= 1"
    )


def test_numbers_that_arithmetic_cannot_take_are_refused():
    assert refusal(check_int, "n", 2**31) == (
        "n=2147483648: expected an integer from 1 to 2147483647"
    )
    for value in (1e308, 10**400):
        assert refusal(check_float, "lr", value) == (
            f"lr={value}: expected a number >= 0 and <= 1e+30"
        )
    check_seed("seed", 2**32)
    assert "expected an integer from 0" in refusal(check_seed, "seed", 10**400)


def test_schemas_name_the_entry_and_not_its_value():
    check_schema(dict[str, list[int]], {"a": [1]})
    with pytest.raises(UserError, match=r"^a\.1: Input should be a valid integer$"):
        check_schema(dict[str, list[int]], {"a": [1, "secret"]})


def test_messages_name_the_bounds_and_what_none_means():
    assert refusal(check_float, "p", 1, below=1) == "p=1: expected a number >= 0 and < 1"
    assert refusal(check_int, "n", 9, 3, maximum=5, none_means="all") == (
        "n=9: expected an integer from 3 to 5, or None: all"
    )
    assert refusal(check_int, "n", None) == "n=None: expected an integer >= 1"
    assert refusal(check_bool, "report", "maybe") == "report=maybe: expected true or false"
    assert refusal(check_choice, "mode", 1, "ab") == "mode=1: expected one of a, b"


def test_settings_in_a_dictionary():
    def function(heads=2, *, width=24):
        raise AssertionError

    check_settings("copy", {"width": 8}, function)
    assert refusal(check_settings, "copy", {"heds": 2}, function) == (
        "copy={'heds': 2}: expected heads, width: got an unexpected keyword argument 'heds'"
    )


def test_a_parent_prefixes_its_parameters():
    with pytest.raises(ParameterError) as caught, parameter_of("model"), parameter_of("position"):
        check_int("depth", 0)
    assert str(caught.value) == "model.position.depth=0: expected an integer >= 1"
    assert caught.value.name == "model.position.depth"


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(ParameterError("n", 0, "expected an integer >= 1")))
    assert str(error) == "n=0: expected an integer >= 1"
