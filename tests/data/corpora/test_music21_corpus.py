import pytest

from musicgen.data.corpora import Music21Corpus
from musicgen.errors import UserError


def test_palestrina_is_split_by_masses():
    corpus = Music21Corpus("palestrina")
    pieces = corpus.pieces()
    assert len(pieces) == 1318
    assert len({piece.group for piece in pieces}) < 110
    (agnus,) = (piece for piece in pieces if piece.name == "Agnus_00.krn")
    assert agnus.group == "Missa De Beata Marie Virginis (II)"
    assert len(corpus.read_piece(agnus).tracks) == 5


def test_an_unknown_composer_lists_those_there_are():
    with pytest.raises(UserError, match=r"^composer=bachh: expected one of .*bach, .*palestrina"):
        Music21Corpus("bachh").pieces()
