import tracemalloc

from benchmarks.scale import made_results, write_corpus
from musicgen.data.corpora import MidiFolder
from musicgen.data.preparation import prepare
from musicgen.tokenization import REMI
from tests.data.settings import encoded_corpus


def test_preparing_a_piece_takes_a_kilobyte(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "run_limited", made_results)
    # What is worked on at once is small here, so that memory is that of the pieces.
    monkeypatch.setattr(prepare, "_COMMIT_PIECES", 250)

    def peak(num_pieces, attempt):
        corpus = MidiFolder(tmp_path / str(num_pieces), group=None, exclude=None)
        cache = tmp_path / f"cache{attempt}"
        data = encoded_corpus(corpus, REMI(), cache, chords="none")
        tracemalloc.start()
        _ = data.cache
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peaks = []
    for num_pieces in (500, 1500):
        write_corpus(tmp_path / str(num_pieces), num_pieces, real=False)
        # The interpreter's table of strings may grow in one of two.
        peaks.append(min(peak(num_pieces, attempt) for attempt in range(2)))
    assert (peaks[1] - peaks[0]) / 1000 < 1200
