"""Listings of the pieces of a corpus: shards, keys by files, and groups of identical files."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from musicgen.data.corpora.base import Piece
from musicgen.data.preparation.encoding import files_of
from musicgen.errors import ParameterError


class Shard(NamedTuple):
    """One of several equal parts of a corpus, numbered from 1, each encoded by its own process."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of a text such as 3/64.

        Raises:
            ParameterError: the text has another form.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        shard = cls(*map(int, match.groups())) if match else cls(0, 0)
        if not 1 <= shard.number <= shard.total:
            raise ParameterError("shard", text, "expected a part and their number, such as 3/64")
        return shard

    def of(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces of the shard."""
        return pieces[self.number - 1 :: self.total]

    @property
    def name(self) -> str:
        """The name of the store of the shard, without a suffix."""
        return f"encoded-{self.number}-of-{self.total}"


def groups_of_identical_files(pieces: Sequence[Piece], indices: Sequence[int]) -> list[list[int]]:
    """Return groups of pieces with identical files, in order.

    Files are identical if their bytes and suffixes are the same. Only files of the same size are
    opened. A piece with several files is a group by itself.

    Args:
        indices: indices of the pieces to group.
    """
    by_size = defaultdict[tuple[str, int], list[int]](list)
    groups = dict[object, list[int]]()
    for i in indices:
        path = pieces[i].path
        if path.is_file():
            by_size[path.suffix, path.stat().st_size].append(i)
        else:
            groups[i] = [i]
    for key, members in by_size.items():
        for i in members:
            content: object = i
            with suppress(OSError):
                if len(members) > 1:
                    content = key, hashlib.blake2b(pieces[i].path.read_bytes()).digest()
            groups.setdefault(content, []).append(i)
    return sorted(groups.values())


def key_of(piece: Piece) -> bytes:
    """Return a hash of the name of a piece and of the names, sizes and times of its files.

    It is b"" if a file cannot be opened.
    """
    digest = hashlib.blake2b(os.fsencode(piece.name), digest_size=12)
    try:
        for file in files_of(piece):
            stat = file.stat()
            digest.update(os.fsencode(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}"))
    except OSError:
        return b""
    return digest.hexdigest().encode()
