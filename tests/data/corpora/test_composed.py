import pickle

from tests.data.builders import ComposedCorpus


def test_grooves_of_one_family_and_pop_pieces_are_groups(tmp_path):
    (tmp_path / ".DS_Store").touch()
    corpus = pickle.loads(pickle.dumps(ComposedCorpus(tmp_path, kind="groove", num_pieces=30)))
    grooves, songs = corpus.pieces(), ComposedCorpus(tmp_path, num_pieces=6).pieces()
    assert all(piece.group == piece.path.parent.name for piece in grooves)
    assert len({piece.group for piece in grooves}) < 30
    assert len(songs) == len({piece.group for piece in songs}) == 6
    tracks = {track.name for piece in grooves for track in corpus.read(piece.path).tracks}
    assert tracks == {"Bass", "Drums", "Guitar", "Piano", "Strings"}
    assert ComposedCorpus(tmp_path, num_pieces=6).pieces() == songs, "both lie side by side"
