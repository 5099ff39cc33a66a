"""The store of encoded pieces after a process was killed."""

import numpy as np

from musicgen.data.preparation.cache import PieceStore
from musicgen.data.preparation.encoding import PieceRecord


def record(name: str) -> PieceRecord:
    return PieceRecord(name, num_tokens=2, num_bars=0, bar_length=16)


def test_pieces_are_found_behind_what_a_killed_process_left(tmp_path):
    sketch, path = np.zeros(4, np.uint64), tmp_path / "store.sqlite"
    arrays = {name: name.encode() * 4 for name in "abc"}
    with PieceStore.open(path) as store:
        store.add([({"a": record("a")}, sketch, arrays["a"])])
        data = tmp_path / store.data_file
    with data.open("ab") as file:
        file.write(b"killed before the table had it")
    with PieceStore.open(path) as store:
        store.add([({name: record(name)}, sketch, arrays[name]) for name in "bc"])
        starts = [store[name][3] for name in "abc"]
    content = data.read_bytes()
    assert [content[start : start + 4] for start in starts] == [*arrays.values()]
    assert len(content) == 12
