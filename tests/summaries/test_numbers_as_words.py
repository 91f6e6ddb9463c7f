from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer

from ceb_gym.errors import ConfigurationError
from ceb_gym.summaries.generic import GenericSummarizer, task_from
from ceb_gym.summaries.plain import plain_text

DISCRETE = spaces.Discrete(4)
terms_of = CountVectorizer().build_analyzer()


class Custom(spaces.Space[Any]):
    """A space of somebody else's, about which nothing is known."""

    def __init__(self) -> None:
        super().__init__(None, None)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return {"left": 3, "right": [1, 2]}

    def contains(self, x: Any) -> bool:
        return True


def state(space: spaces.Space[Any] | None, value: Any, action: Any = 1) -> str:
    return GenericSummarizer(space, DISCRETE).state(value, {}, action)


def action(space: spaces.Space[Any] | None, value: Any) -> str:
    return GenericSummarizer(None, space).action(value)


SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "discrete from a negative start": spaces.Discrete(30, start=-20),
    "discrete, huge": spaces.Discrete(10**9),
    "multi-discrete": spaces.MultiDiscrete([3, 200], start=[-2, 0]),
    "multi-discrete in rows": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi-discrete, huge": spaces.MultiDiscrete([7] * 5_000),
    "multi-binary": spaces.MultiBinary(4),
    "multi-binary, huge": spaces.MultiBinary((300, 300)),
    "box": spaces.Box(-1, 1, (3,)),
    "box without bounds": spaces.Box(-np.inf, np.inf, (3,)),
    "box half bounded": spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 1]), dtype=np.float64),
    "box of the largest floats": spaces.Box(
        -np.finfo(np.float64).max, np.finfo(np.float64).max, (100,), np.float64
    ),
    "box of no dimension": spaces.Box(0, 1, ()),
    "box of integers": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "box, huge": spaces.Box(-np.inf, np.inf, (100_000,)),
    "memory of bytes": spaces.Box(0, 255, (128,), np.uint8),
    "grey image": spaces.Box(0, 255, (60, 80), np.uint8),
    "image of one channel": spaces.Box(0, 255, (84, 84, 1), np.uint8),
    "image": spaces.Box(0, 255, (21, 16, 3), np.uint8),
    "image with alpha": spaces.Box(0, 255, (64, 64, 4), np.uint8),
    "image of floats": spaces.Box(0, 1, (9, 8, 3), np.float32),
    "stack of frames": spaces.Box(0, 255, (4, 84, 84), np.uint8),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    "dict": spaces.Dict({"at": spaces.Discrete(9), "speed": spaces.Box(-np.inf, np.inf, (2,))}),
    "nested": spaces.Dict(
        {"a": spaces.Tuple((spaces.Dict({"b c": spaces.MultiBinary(2)}), spaces.Discrete(2)))}
    ),
    "sequence": spaces.Sequence(spaces.Discrete(5)),
    "sequence, stacked": spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    "sequence of dicts, stacked": spaces.Sequence(spaces.Dict({"x": spaces.Discrete(3)}), stack=True),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "one of": spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
    "custom": Custom(),
}


def sample(space: spaces.Space[Any], seed: int) -> Any:
    space.seed(seed)
    try:
        return space.sample()
    except (RuntimeWarning, OverflowError):  # NumPy cannot draw between the largest floats
        assert isinstance(space, spaces.Box)
        return space.high


EVERY_SPACE = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


@EVERY_SPACE
def test_every_space_gives_states_and_actions_with_terms(space: spaces.Space[Any]) -> None:
    summarizer = GenericSummarizer(space, space)
    for seed in range(3):
        value = sample(space, seed)
        text = summarizer.state(value, {}, value)
        assert terms_of(text) and terms_of(summarizer.action(value))
        assert len(text) < 60_000


@EVERY_SPACE
def test_equal_values_give_equal_text_in_another_summarizer(space: spaces.Space[Any]) -> None:
    value = sample(space, 5)
    assert state(space, value) == state(space, value)


STRANGE: list[Any] = [
    None,
    "text",
    "",
    b"\xff\x00bytes",
    7,
    -7,
    2.5,
    float("nan"),
    float("inf"),
    10**400,
    np.float32(0.5),
    np.array(3),
    np.array([1, 2]),
    np.array(["a"]),
    np.array([[1], 2], dtype=object),
    [],
    [[1], [2, 3]],
    {"a": {1, 2}},
    {"wrong": 1},
    (1, (2, "x")),
    object(),
    object,
    lambda: None,
]


@EVERY_SPACE
def test_a_value_outside_its_space_is_described_by_its_value(space: spaces.Space[Any]) -> None:
    summarizer = GenericSummarizer(space, space)
    for value in STRANGE:
        texts = [
            summarizer.state(value, {}, value),
            summarizer.action(value),
            summarizer.outcome(value, {}),
            summarizer.task(value, {}, {}),
        ]
        assert all(isinstance(text, str) for text in texts), repr(value)


@pytest.mark.parametrize(
    "value", [7, -7, 2.5, float("nan"), float("inf"), 10**400, np.array([1, 2]), (3, 4)], ids=str
)
@pytest.mark.parametrize("space", [DISCRETE, SPACES["multi-binary"], SPACES["box"], Custom(), None], ids=str)
def test_numbers_outside_their_space_still_have_terms(space: spaces.Space[Any] | None, value: Any) -> None:
    assert terms_of(state(space, value)) and terms_of(action(space, value))


@given(st.integers(-120, 120), st.integers(1, 120))
def test_each_value_of_a_discrete_space_has_one_term_of_its_own(start: int, count: int) -> None:
    space = spaces.Discrete(count, start=start)
    terms = [terms_of(action(space, start + index)) for index in range(count)]
    assert all(len(each) == 1 for each in terms)
    assert len({each[0] for each in terms}) == count


@pytest.mark.parametrize("value", [3, np.int64(3), np.int8(3), np.array(3), np.array([3])], ids=repr)
def test_an_integer_is_the_same_word_in_whatever_type_it_comes(value: Any) -> None:
    summarizer = GenericSummarizer(DISCRETE, DISCRETE)
    assert summarizer.action(value) == "action_03"
    assert summarizer.state(value, {}, value) == "state_03 state_03_action_03"
    assert np.ndim(value) == 1 or summarizer.outcome(value, {}) == "state_03"


@pytest.mark.parametrize("value", ["3", b"3", 3.0, 3.7])
def test_what_is_no_integer_is_not_taken_for_one_of_the_actions(value: Any) -> None:
    assert action(DISCRETE, value) != "action_03" or value == 3.0


def test_actions_can_have_names() -> None:
    summarizer = GenericSummarizer(DISCRETE, DISCRETE, action_names="left,move-down,right,up")
    assert [summarizer.action(value) for value in range(4)] == [
        "action_left",
        "action_move_down",
        "action_right",
        "action_up",
    ]
    assert summarizer.state(2, {}, 0) == "state_02 state_02_action_left"


@pytest.mark.parametrize("names", ["a,b", "a,a,b,c", ["a", 1, "b", "c"], 5, None])
def test_names_that_do_not_fit_are_refused(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="action_names"):
        GenericSummarizer(DISCRETE, DISCRETE, action_names=names)


def test_text_actions_stay_text() -> None:
    assert action(spaces.Text(100), "ls -la | wc") == "ls -la | wc"
    assert action(spaces.Text(100), b"ls") == "ls"


def test_long_text_keeps_head_and_tail_with_a_count() -> None:
    text = state(spaces.Text(2_000_000), "h" * 999_999 + "t")
    assert len(text) < 2_100 and text.startswith("hh") and text.endswith("ht")
    assert "[... 998000 characters cut ...]" in text


def test_a_long_text_in_a_numeric_space_does_not_flood_the_state() -> None:
    assert len(state(DISCRETE, "x y " * 100_000)) < 2_100
    assert len(GenericSummarizer(SPACES["box"], DISCRETE).state(np.zeros(3), {}, "x y " * 100_000)) < 2_100


def test_nan_is_a_word_and_infinities_lie_in_the_outermost_bins() -> None:
    space = spaces.Box(-1, 1, (1,))
    assert "state_00_nan" in terms_of(state(space, np.array([np.nan])))
    assert state(space, np.array([np.inf])) == state(space, np.array([5.0])) == state(space, np.array([1.0]))
    assert state(space, np.array([-np.inf])) == state(space, np.array([-1.0]))


def test_infinities_of_both_signs_in_one_chunk_are_described() -> None:
    value = np.tile([np.inf, -np.inf], 50)
    assert "state_01_nan" in terms_of(state(spaces.Box(-np.inf, np.inf, (100,)), value))


def test_an_image_is_64_tiles_of_8_grey_levels() -> None:
    image = np.zeros((80, 80, 3), np.uint8)
    image[:10, :10] = 255
    words = GenericSummarizer(spaces.Box(0, 255, (80, 80, 3), np.uint8), None).state(image, {}, None).split()
    assert len(words) == 64
    assert words[0] == "tile_0_0_g7" and set(words[1:]) == {
        f"tile_{row}_{column}_g0" for row in range(8) for column in range(8)
    } - {"tile_0_0_g0"}


def test_a_tile_without_a_grey_is_not_black() -> None:
    image = np.zeros((8, 8), np.float32)
    image[0, 0] = np.nan
    words = GenericSummarizer(spaces.Box(0, 1, (8, 8)), None).state(image, {}, None).split()
    assert words[0] == "tile_0_0_nan" and words[1] == "tile_0_1_g0"


def test_two_cameras_have_words_of_their_own() -> None:
    camera = spaces.Box(0, 255, (16, 16), np.uint8)
    black = np.zeros((16, 16), np.uint8)
    white = black + np.uint8(255)
    space = spaces.Dict({"left": camera, "right": camera})
    one, other = (
        set(terms_of(state(space, {"left": a, "right": b}))) for a, b in ((black, white), (white, black))
    )
    assert not {term for term in one & other if "tile" in term}


def test_parts_of_a_dict_have_words_of_their_own() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(3)})
    assert state(space, {"a": 0, "b": 1}) == "a: state_a_00\nb: state_b_01"


def test_the_option_and_the_items_of_choices_and_sequences_are_words() -> None:
    assert terms_of(state(SPACES["one of"], (np.int64(0), 2))) == ["state_option_00", "state_0_02"]
    assert terms_of(state(SPACES["sequence"], (1, 4))) == ["state_len_02", "state_item_01", "state_item_04"]


def test_near_states_of_cartpole_share_more_words_than_far_ones() -> None:
    env = gym.make("CartPole-v1")
    env.action_space.seed(0)
    states: list[Any] = []
    observation, _ = env.reset(seed=0)
    for _ in range(400):
        states.append(observation)
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    values = np.array(states)
    words = [set(state(env.observation_space, each, action=1).split()) for each in states]
    scaled = values / values.std(axis=0)
    rng = np.random.default_rng(0)
    near, far = [], []
    for index in rng.choice(len(states), 60, replace=False):
        order = np.linalg.norm(scaled - scaled[index], axis=1).argsort()
        shared = [len(words[index] & words[other]) for other in order]
        near.append(np.mean(shared[1:6]))
        far.append(np.mean(shared[-100:]))
    assert np.mean(near) > 1.5 * np.mean(far)


@pytest.mark.parametrize(
    ("info", "options", "task"),
    [
        ({"task": "a", "instruction": "b", "goal": "c"}, {"task": "d"}, "a"),
        ({"instruction": "b", "goal": "c"}, {}, "b"),
        ({"goal": "c"}, {"task": "d"}, "c"),
        ({"goal": np.zeros(2), "task": None, "instruction": 5}, {"goal": "d"}, "d"),
        ({"task": b"bytes"}, {}, ""),
        ({"task": "  \n"}, {"task": "d"}, "d"),
        ({}, {}, ""),
    ],
)
def test_the_task_comes_from_info_then_options_and_is_text(info: Any, options: Any, task: str) -> None:
    assert task_from(info, options) == task
    assert GenericSummarizer(DISCRETE, DISCRETE).task(0, info, options) == task


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([np.int64(3), np.float64(0.5)], [3, 0.5]),
        ((1, 2), [1, 2]),
        ({"b": 1}, {"b": np.int32(1)}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        (np.float64(0.125), 0.125),
        (np.str_("text"), "text"),
        (np.bool_(True), True),
    ],
)
def test_equal_values_have_equal_text(one: Any, other: Any) -> None:
    assert plain_text(one) == plain_text(other)


def test_memory_addresses_do_not_reach_the_text() -> None:
    class Thing:
        pass

    assert "0x" not in plain_text(Thing()) + plain_text([Thing()]) + plain_text(np.array([Thing()]))


def test_a_value_that_holds_itself_is_described() -> None:
    ring: list[Any] = []
    ring.append(ring)
    loop: dict[str, Any] = {}
    loop["self"] = loop
    assert plain_text(ring) == "[[...]]" and plain_text(loop)
