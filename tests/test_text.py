from hypothesis import given
from hypothesis import strategies as st

from ceb_gym.build.specs import parse_value
from ceb_gym.text import clean_text, number_text, retrieval_key, shorten

ANY_TEXT = st.text(alphabet=st.characters(), max_size=60)


@given(ANY_TEXT)
def test_cleaned_text_can_be_encoded_and_holds_no_nul(text: str) -> None:
    cleaned = clean_text(text)
    assert b"\x00" not in cleaned.encode("utf-8")
    assert len(cleaned) == len(text)
    assert clean_text(cleaned) == cleaned


def test_lone_surrogates_and_nul_become_replacement_characters() -> None:
    assert clean_text("a\x00b\ud800c\udfff") == "a\ufffdb\ufffdc\ufffd"


def test_text_that_fits_is_left_as_it_is() -> None:
    assert shorten("x" * 30, 30) == "x" * 30


def test_long_text_keeps_head_and_tail_with_the_count_of_what_was_cut() -> None:
    text = "h" * 1_000_000 + "t" * 1_000
    short = shorten(text, 300)
    assert short == "h" * 200 + "\n[... 1000700 characters cut ...]\n" + "t" * 100


@given(ANY_TEXT, st.integers(2, 50))
def test_what_is_kept_and_what_is_cut_add_up(text: str, max_chars: int) -> None:
    short = shorten(text, max_chars)
    if len(text) <= max_chars:
        assert short == text
    else:
        tail = max_chars // 3
        note = f"\n[... {len(text) - max_chars} characters cut ...]\n"
        assert short == text[: max_chars - tail] + note + (text[-tail:] if tail else "")


def test_retrieval_key_is_the_papers() -> None:
    assert retrieval_key("q", "s", "a") == "task: q || state: s || action: a"


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9))
def test_numbers_in_spec_strings_read_back_exactly(value: float) -> None:
    text = number_text(value)
    assert parse_value(text) == value
    assert "+" not in text
