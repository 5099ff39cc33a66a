"""Notes whose performance others copy: each difference decides alone."""

import numpy as np
import pytest

from musicgen.midi.donors import PLAYED_NOTE, Groups, find_donors

LIKE, UNLIKE = 1, 2  # velocities
SAME = {"part": 0, "bar": 0, "position": 1.0, "pitch": 60, "length": 1.0}
# Of each difference: the new group, one like it, and one that differs in this alone. A group is
# a list of what its notes change in `SAME`.
DIFFERENCES = {
    "part": ([{}], [{}], [{"part": 1}]),
    "bar": ([{}], [{}], [{"bar": 3}]),
    "position": ([{}], [{}], [{"position": 2.0}]),
    "subdivision": ([{}], [{"position": 2.0}], [{"position": 1.5}]),
    "the way around a beat": ([{"position": 1.9}], [{"position": 3.0}], [{"position": 2.5}]),
    "downbeat": ([{}], [{"position": 2.0}], [{"position": 0.0}]),
    "size": ([{}], [{}], [{}] * 3),
    "length": ([{}], [{}], [{"length": 4.0}]),
    "top": ([{}, {}], [{}, {}], [{"pitch": 72}, {}]),
    "bottom": ([{}, {}], [{}, {}], [{}, {"pitch": 40}]),
}


def groups(*members):
    rows = [
        (*tuple((SAME | change).values()), velocity, 0.0, 1.0, 0.0)
        for changes, velocity in members
        for change in changes
    ]
    return Groups(np.array(rows, PLAYED_NOTE))


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_donor_is_the_most_similar(name):
    new, like, unlike = DIFFERENCES[name]
    # In two bars at the same distance from the model, as notes of one place are one group.
    like, unlike = ([{"bar": bar} | each for each in x] for bar, x in ((0, like), (2, unlike)))
    old = groups((like, LIKE), (unlike, UNLIKE))
    model = 0 if name == "bar" else 1
    for seed in range(8):
        donors = find_donors(groups((new, 0)), old, np.array([model]), np.random.default_rng(seed))
        assert {*donors["velocity"].tolist()} == {LIKE}


def test_a_group_is_played_like_the_places_of_its_chord():
    old = groups(([{"pitch": 72}], 9), ([{"pitch": 65}], 7), ([{"pitch": 60}], 5))
    new = groups(([{"pitch": 50}], 0), ([{"pitch": 62}], 0), ([{"pitch": 55}], 0))
    donors = find_donors(new, old, np.array([0]), np.random.default_rng(0))
    assert donors["velocity"].tolist() == [5, 9, 7]
