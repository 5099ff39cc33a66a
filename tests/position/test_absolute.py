"""The coordinates that encodings read, encodings of absolute positions, and noise."""

import pytest
import torch

from musicgen.errors import ParameterError, UserError
from musicgen.position import ALiBi, ConvSPE, Learnable, PermutationLRPE, RoPE, SineSPE
from musicgen.random import NoiseKey

SIZES = {"num_layers": 2, "num_heads": 5, "width": 6, "model_dim": 30}
OF_ONE_HEAD = {"num_layers": 1, "num_heads": 1, "width": 6, "model_dim": 6}
NOISE = NoiseKey((3,))


def test_a_table_of_too_many_lags_is_refused():
    positions = torch.arange(20)[None, :, None].expand(-1, -1, 3)
    codes, _ = ALiBi(**SIZES, coordinates=["index", "pitch"])(positions, noise=NOISE)
    bounds = ((-600, 600), (0, 0), (-600, 600))
    with pytest.raises(UserError, match=r"table of all lags, .* 1,442,401; use fewer coordinates"):
        codes[0].logits.table(bounds)
    assert codes[0].logits.table(((-600, 600), (0, 0), (-99, 99))).values.shape[1] == 1201 * 199


@pytest.mark.parametrize(
    ("coordinates", "columns", "names"),
    [
        ("index", (0,), ("index",)),
        (["index"], (0,), ("index",)),
        ("beat", (2,), ("index", "time", "beat")),
        (2, (0, 1), ("index", "time")),
        (["chord", "time", "bar"], (2, 1, 3), ("index", "time", "chord", "bar")),
    ],
)
def test_columns_begin_with_index_and_time(coordinates, columns, names):
    encoding = SineSPE(**SIZES, coordinates=coordinates)
    assert (encoding.columns, encoding.coordinate_names) == (columns, names)
    assert encoding.num_columns == len(names)


FOUR = ["index", "time", "bar", "beat"]


@pytest.mark.parametrize(
    ("encoding", "wrong", "message"),
    [
        *((RoPE, x, "expected a name, a list of ") for x in ([], ["index", "index"], 0, None)),
        (PermutationLRPE, ["index", "beat"], "expected index or time .*rope takes several"),
        (ConvSPE, ["index", "beat"], "expected index, time .*sine_spe takes any"),
        (RoPE, FOUR, "expected at most 3, .* width 6"),  # an angle for each
    ],
)
def test_coordinates_that_an_encoding_cannot_take(encoding, wrong, message):
    RoPE(**SIZES, coordinates=FOUR[:3])
    with pytest.raises(ParameterError, match=rf"coordinates.*: {message}"):
        encoding(**SIZES, coordinates=wrong)


def test_learnable_adds_its_row_and_ends_at_its_length():
    position = Learnable(**OF_ONE_HEAD, max_length=4)
    out = position.embed(torch.ones(1, 2, 6), torch.tensor([[[3], [0]]]))
    torch.testing.assert_close(out[0], 1 + position.table[[3, 0]])
    with pytest.raises(UserError, match=r"^max_length=4: expected 5 or more, one .*sine_spe"):
        position.draw(NoiseKey((0,)), torch.tensor([[[4]]]), torch.device("cpu"))


def test_noise_keys():
    key = NoiseKey((1, 2))
    draw = key.normal(1000, device="cpu")
    assert torch.equal(draw, NoiseKey((1, 2)).normal(1000, device="cpu"))
    assert not torch.equal(draw, key.fold(0).normal(1000, device="cpu"))
    assert not torch.equal(NoiseKey((12,)).normal(9, device="cpu"), key.normal(9, device="cpu"))
    assert abs(draw.mean()) < 0.1
    assert abs(draw.std() - 1) < 0.1
