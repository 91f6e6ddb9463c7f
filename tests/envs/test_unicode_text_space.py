import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.error import CustomSpaceError
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
)

from ceb_envs.spaces import UnicodeText


@pytest.mark.parametrize("text", ["", " ", "ls -l | wc\n", "äß中🙂", "\0", "\ud800", "x" * 1_000_000])
def test_space_without_a_limit_contains_any_text(text: str) -> None:
    assert text in UnicodeText()


@pytest.mark.parametrize("other", [None, 3, b"ls", ["ls"], ("a",)])
def test_space_contains_only_text(other: object) -> None:
    assert other not in UnicodeText()


def test_limit_counts_characters_and_is_inclusive() -> None:
    space = UnicodeText(3)
    assert "äß🙂" in space
    assert "äß🙂!" not in space
    assert "" in UnicodeText(0)
    with pytest.raises(ValueError, match="at least 0"):
        UnicodeText(-1)


def test_samples_belong_to_the_space_and_repeat_with_the_seed() -> None:
    for space in (UnicodeText(), UnicodeText(5), UnicodeText(0)):
        space.seed(3)
        first = [space.sample() for _ in range(50)]
        space.seed(3)
        assert first == [space.sample() for _ in range(50)]
        assert all(text in space for text in first)
    assert len({UnicodeText(seed=seed).sample() for seed in range(20)}) > 10


def test_sample_refuses_masks() -> None:
    with pytest.raises(ValueError, match="no mask"):
        UnicodeText().sample(mask=(1, None))


def test_spaces_are_equal_when_their_limits_are() -> None:
    assert UnicodeText() == UnicodeText(seed=4)
    assert UnicodeText(3) == UnicodeText(3)
    assert UnicodeText(3) != UnicodeText(4)
    assert UnicodeText() != gymnasium.spaces.Text(3)


def test_repr_rebuilds_the_space() -> None:
    for space in (UnicodeText(), UnicodeText(7)):
        assert eval(repr(space)) == space


def test_pickled_space_goes_on_sampling_where_the_original_was() -> None:
    space = UnicodeText(9, seed=1)
    space.sample()
    twin = pickle.loads(pickle.dumps(space))
    assert twin == space
    assert [twin.sample() for _ in range(5)] == [space.sample() for _ in range(5)]


def test_batches_are_tuples_of_text() -> None:
    space = UnicodeText()
    batched = batch_space(space, 3)
    assert ("", "中", "a b") in batched
    out = create_empty_array(space, n=3)
    joined = concatenate(space, ["", "中", "a b"], out)
    assert joined == ("", "中", "a b")
    assert list(iterate(batched, joined)) == ["", "中", "a b"]


def test_lanes_with_other_limits_can_be_batched() -> None:
    batched = batch_differing_spaces([UnicodeText(1), UnicodeText(5)])
    assert ("a", "bbbbb") in batched
    assert ("aa", "b") not in batched


def test_text_inside_a_dict_space_can_be_batched() -> None:
    space = gymnasium.spaces.Dict({"text": UnicodeText(), "n": gymnasium.spaces.Discrete(3)})
    joined = concatenate(space, [{"text": "a", "n": 1}, {"text": "", "n": 2}], create_empty_array(space, n=2))
    assert joined["text"] == ("a", "")
    assert joined["n"].tolist() == [1, 2]


def test_flattening_is_refused_with_a_sentence() -> None:
    space = UnicodeText()
    assert not space.is_np_flattenable
    for call in (
        lambda: flatdim(space),
        lambda: flatten(space, "a"),
        lambda: unflatten(space, np.zeros(1)),
        lambda: flatten_space(space),
    ):
        with pytest.raises(ValueError, match="cannot be flattened"):
            call()


def test_shared_memory_is_refused_with_a_sentence() -> None:
    with pytest.raises(CustomSpaceError, match="shared_memory=False"):
        create_shared_memory(UnicodeText(), n=2)
