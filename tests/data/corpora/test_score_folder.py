"""Folders of scores: which files, groups, editions and splits; several corpora as one."""

import shutil

import pytest
from omegaconf import OmegaConf

from musicgen.data.corpora import ScoreFolder, Songbook
from musicgen.errors import UserError
from musicgen.midi import write
from musicgen.package_data import CONF
from musicgen.tokenization import REMI
from tests.data.builders import MidiFolder, encoded_corpus, melody

KERN = "!!!AIN: {}\n**kern\n*M3/4\n=1\n2.c\n=2\n4d\n4e\n4f\n==\n*-\n"


def open_corpus(name, root, **changed):
    files = "openscore_lieder", name  # which the others extend
    plain = OmegaConf.merge(*(OmegaConf.load(CONF / f"data/{file}.yaml") for file in files))
    own = {k: plain[k] for k in plain.keys() - {"_target_", "defaults", "root"}}
    return ScoreFolder(root, **own | changed)


@pytest.fixture
def clone(tmp_path):
    """`clone("kern/a.krn", …)`: a folder of new scores of those names."""

    def make(*names, instruments="2 piano 1 vox"):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(KERN.format(instruments))
        return tmp_path

    return make


def test_lieder_are_grouped_by_composer(clone):
    root = clone("scores/Lang/A/x/1.mxl", "scores/Lang/B/y/2.mxl", "scores/Wolf/_/z/3.mxl")
    clone("scores/Wolf/_/z/3.mscx", "docs/4.mxl")
    pieces = open_corpus("openscore_lieder", root).pieces()
    assert [piece.group for piece in pieces] == ["Lang", "Lang", "Wolf"]
    assert {piece.split for piece in pieces} == {None}
    pieces = open_corpus("openscore_lieder", root, val_groups=["Wolf"]).pieces()
    assert [piece.split for piece in pieces] == ["train", "train", "val"]
    with pytest.raises(UserError, match=r"val_groups=Hugo: expected groups such as \['Lang'\]"):
        open_corpus("openscore_lieder", root, val_groups=["Wolf", "Hugo"]).pieces()


def test_polish_scores_have_a_piano_alone_or_with_a_voice(clone):
    root = clone("kern/pl-1--2_elsner-jozef--rondo.krn", "kern/pl-3_damse--waltz-a_b.krn")
    clone("kern/pl-4_elsner-jozef--quartet.krn", instruments="2 vn 1 va 1 vc")
    pieces = open_corpus("polish_piano", root).pieces()
    assert [piece.group for piece in pieces] == ["elsner-jozef", "damse"]


def test_chopin_has_one_edition_of_each_work(clone):
    editions = ["001-1-BRZ", "001-1a-HO", "003-1-Sm-violoncello", "006-1-KI-001", "006-1b-Sm-001"]
    editions += ["006-1b-Sm-002", "018-1-BH", "018-1a-Sm-001", "073-1x-Sam-Secondo", "GDC-1-Sm"]
    root = clone(*(f"kern/{name}.krn" for name in editions))
    pieces = open_corpus("chopin", root).pieces()
    kept = [0, 3, 5, 6, 9]
    assert [piece.name for piece in pieces] == [f"kern/{editions[i]}.krn" for i in kept]
    assert [piece.group for piece in pieces] == ["001", "006", "006", "018", "GDC"]


def test_a_songbook_joins_corpora_of_any_kind(clone, tmp_path):
    clone(*(f"polish/kern/pl-{i}_damse--{i}.krn" for i in range(4)))
    write(melody(0), tmp_path / "midi/a.mid")
    corpora = {
        "polish": open_corpus("polish_piano", "polish", val_groups=["damse"]),
        "my midi": MidiFolder(tmp_path / "midi"),
    }
    book = Songbook(tmp_path, corpora=corpora, weights={"polish": 1.5, "my midi": 2})
    names = [piece.name for piece in book.pieces()]
    assert names[:4] == [f"polish/kern/pl-{i}_damse--{i}.krn" for i in range(4)]
    assert names[4:] == [
        *("polish 2/kern/pl-0_damse--0.krn", "polish 2/kern/pl-2_damse--2.krn"),
        *("my midi/a.mid", "my midi 2/a.mid"),
    ]
    encoded = encoded_corpus(book, REMI(), tmp_path / "cache")
    assert sorted(encoded.cache.names) == sorted(names)
    assert len(encoded.split("val")) == 6
    scores = [book.read_piece(piece) for piece in book.pieces()]
    assert [score.num_notes for score in scores] == [4] * 6 + [16] * 2
    shutil.rmtree(tmp_path / "polish/kern")
    with pytest.raises(UserError, match=rf"^corpora\.polish\.root={tmp_path}/polish: expected"):
        book.pieces()
    with pytest.raises(UserError, match=r"weights\.opera=opera: expected one of polish, my midi"):
        Songbook(tmp_path, corpora=corpora, weights={"opera": 1})
    with pytest.raises(
        UserError, match=r"weights\.my midi=1000000000\.0: expected a number .* <= 100"
    ):
        Songbook(tmp_path, corpora=corpora, weights={"my midi": 1e9})
