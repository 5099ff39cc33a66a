import pickle

import pytest

from musicgen.errors import UserError
from tests.data.settings import ComposedCorpus


def test_grooves_of_one_family_and_pop_pieces_are_groups(tmp_path):
    corpus = pickle.loads(pickle.dumps(ComposedCorpus(tmp_path, kind="groove", num_pieces=30)))
    grooves, songs = corpus.pieces(), ComposedCorpus(tmp_path, num_pieces=6).pieces()
    assert all(piece.group == piece.path.parent.name for piece in grooves)
    assert len({piece.group for piece in grooves}) < 30
    assert len(songs) == len({piece.group for piece in songs}) == 6
    tracks = {track.name for piece in grooves for track in corpus.read(piece.path).tracks}
    assert tracks == {"Bass", "Drums", "Guitar", "Piano", "Strings"}


@pytest.mark.parametrize("name", ["my song.mid", "album/song.mid", "notes.txt"])
def test_nothing_is_composed_among_other_files(tmp_path, name):
    root = tmp_path / "my music"
    file = root / name
    file.parent.mkdir(parents=True)
    file.touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="holds other files") as refusal:
        ComposedCorpus(root, num_pieces=3).pieces()
    assert f"data=midi_folder 'data.root={root}'" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_composed_corpora_lie_side_by_side(tmp_path):
    (tmp_path / ".DS_Store").touch()
    for kind in ("pop", "groove", "pop"):
        assert len(ComposedCorpus(tmp_path, kind=kind, num_pieces=3).pieces()) == 3
    assert len(ComposedCorpus(tmp_path / "new/folder", num_pieces=3).pieces()) == 3
