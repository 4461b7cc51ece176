"""The selection language against an oracle that reads the rules one position at a time."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easysteer_data.errors import SettingsError
from easysteer_data.select import UNKNOWN_TOKEN, SelectSpec, coerce_select, select_from_lists, warn_clamped

FIELDS = [
    "prompt",
    "generation",
    "prompt_tokens",
    "prompt_positions",
    "prompt_window",
    "generation_tokens",
    "generation_positions",
    "generation_window",
    "exclude_prompt_tokens",
    "exclude_prompt_positions",
    "exclude_prompt_window",
    "exclude_generation_tokens",
    "exclude_generation_positions",
    "exclude_generation_window",
]
VOCABULARY = range(5)
unhurried = settings(deadline=None)


# --- the oracle: plain loops over the rules, nothing of the package -------------------------------


def clause_matches(fields: dict[str, Any], prefix: str, place: int, token: int, n_prompt: int | None) -> bool:
    """Whether any clause of `prefix` names this place of its phase; `n_prompt` is None for steps."""
    if token in fields.get(f"{prefix}_tokens", []):
        return True
    for position in fields.get(f"{prefix}_positions", []):
        named = position
        if n_prompt is not None and position < 0:
            named = n_prompt + position
        elif n_prompt is not None and position >= n_prompt:
            named = n_prompt - 1
        if named == place:
            return True
    if f"{prefix}_window" in fields:
        start, stop = fields[f"{prefix}_window"]
        if start < 0:
            start += n_prompt
        if stop is not None and stop < 0:
            stop += n_prompt
        return start <= place and (stop is None or place < stop)
    return False


def selected(fields: dict[str, Any], prompt: list[int], generated: list[int]) -> list[bool]:
    answer = []
    for position, token in enumerate(prompt + generated):
        if position < len(prompt):
            phase, place, n_prompt = "prompt", position, len(prompt)
        else:
            phase, place, n_prompt = "generation", position - len(prompt), None
        included = fields.get(phase) == "all" or clause_matches(fields, phase, place, token, n_prompt)
        excluded = clause_matches(fields, f"exclude_{phase}", place, token, n_prompt)
        answer.append(included and not excluded)
    return answer


def windows(low: int) -> st.SearchStrategy[tuple[int, int | None]]:
    """Windows that may hold something: not empty where that shows before the prompt's length is known."""
    bounds = st.tuples(st.integers(low, 9), st.none() | st.integers(low, 9))
    return bounds.filter(lambda w: w[1] is None or (w[1] != 0 and ((w[0] < 0) != (w[1] < 0) or w[0] < w[1])))


def lists(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=1, max_size=4)


def values(name: str) -> st.SearchStrategy[Any]:
    low = -9 if "prompt" in name else 0
    if name in ("prompt", "generation"):
        return st.just("all")
    if name.endswith("_tokens"):
        return lists(VOCABULARY[0], VOCABULARY[-1])
    return windows(low) if name.endswith("_window") else lists(low, 9)


def without_uncovered_excludes(fields: dict[str, Any]) -> dict[str, Any]:
    """Drop the excludes of phases that have no include."""
    covered = {name.split("_")[0] for name in fields} - {"exclude"}
    return {
        name: value
        for name, value in fields.items()
        if not name.startswith("exclude") or name.split("_")[1] in covered
    }


valid_fields = (
    st.fixed_dictionaries({}, optional={name: values(name) for name in FIELDS})
    .map(without_uncovered_excludes)
    .filter(bool)
)
prompts = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8)
completions = st.lists(st.sampled_from(VOCABULARY), max_size=6)


def mask(spec: SelectSpec, prompt: list[int], generated: list[int]) -> list[bool]:
    return spec.mask(len(prompt), 0, np.array(prompt + generated, dtype=np.int32)).tolist()


# --- selection -----------------------------------------------------------------------------------


@settings(unhurried, max_examples=500)
@given(fields=valid_fields, prompt=prompts, generated=completions)
def test_a_mask_is_what_the_rules_say_position_by_position(fields, prompt, generated):
    assert mask(SelectSpec(**fields), prompt, generated) == selected(fields, prompt, generated)


@unhurried
@given(fields=valid_fields, prompt=prompts, generated=completions)
def test_every_chunk_of_a_sequence_has_its_part_of_the_mask(fields, prompt, generated):
    spec = SelectSpec(**fields)
    token_ids = np.array(prompt + generated)
    whole = selected(fields, prompt, generated)
    for start, stop in itertools.combinations(range(len(token_ids) + 1), 2):
        assert spec.mask(len(prompt), start, token_ids[start:stop]).tolist() == whole[start:stop]


@unhurried
@given(fields=valid_fields, prompt=prompts, generated=st.lists(st.sampled_from(VOCABULARY), max_size=3))
def test_candidates_hold_every_row_that_any_completion_selects(fields, prompt, generated):
    spec = SelectSpec(**fields)
    unknown = np.array(prompt + [UNKNOWN_TOKEN] * len(generated))
    candidates = spec.candidates(len(prompt), 0, unknown)
    for completion in itertools.product(VOCABULARY, repeat=len(generated)):
        exact = np.array(mask(spec, prompt, list(completion)))
        assert not (exact & ~candidates).any()


@unhurried
@given(fields=valid_fields, prompt=prompts, generated=completions)
def test_candidates_are_exact_where_all_tokens_are_known(fields, prompt, generated):
    candidates = SelectSpec(**fields).candidates(len(prompt), 0, np.array(prompt + generated))
    assert candidates.tolist() == selected(fields, prompt, generated)


@unhurried
@given(fields=valid_fields, prompt=prompts, n_steps=st.integers(0, 3))
def test_no_completion_gives_more_than_max_rows(fields, prompt, n_steps):
    completions = itertools.product(VOCABULARY, repeat=n_steps)
    most = max(sum(selected(fields, prompt, list(completion))) for completion in completions)
    limit = SelectSpec(**fields).max_rows(prompt, n_steps)
    assert limit >= most
    if not {"generation_tokens", "exclude_generation_tokens"} & fields.keys():
        assert limit == most


@pytest.mark.parametrize(
    ("fields", "positions"),
    [
        ({"prompt_positions": [-1]}, [4]),
        ({"prompt_positions": [-1], "generation": "all"}, [4, 5, 6, 7]),
        ({"prompt_positions": [40]}, [4]),
        ({"prompt": "all", "exclude_prompt_positions": [40]}, [0, 1, 2, 3]),
        ({"prompt_positions": [-6]}, []),
        ({"prompt_window": (-2, None)}, [3, 4]),
        ({"prompt_window": (-9, -3)}, [0, 1]),
        ({"prompt_window": (1, -1)}, [1, 2, 3]),
        ({"prompt_window": (3, 99)}, [3, 4]),
        ({"prompt_window": (9, None)}, []),
        ({"prompt_window": (0, None)}, [0, 1, 2, 3, 4]),
        ({"prompt_tokens": [7]}, [0, 2]),
        ({"generation_tokens": [7]}, [6]),
        ({"generation_positions": [0, 99]}, [5]),
        ({"generation_window": (1, None)}, [6, 7]),
        ({"generation_window": (1, 2)}, [6]),
        ({"prompt_tokens": [7], "exclude_prompt_positions": [0]}, [2]),
        ({"prompt": "all", "prompt_tokens": [7], "exclude_prompt_tokens": [7]}, [1, 3, 4]),
    ],
)
def test_a_selection_by_hand_takes_these_positions(fields, positions):
    prompt, generated = [7, 8, 7, 9, 10], [8, 7, 9]
    assert np.flatnonzero(mask(SelectSpec(**fields), prompt, generated)).tolist() == positions


def test_a_chunk_without_tokens_has_an_empty_mask():
    assert SelectSpec(prompt_window=(0, 2)).mask(3, 3, np.array([], dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize(
    "fields", [{"generation_tokens": [3]}, {"generation": "all", "exclude_generation_tokens": [3]}]
)
def test_a_mask_refuses_an_unknown_token_that_a_clause_reads(fields):
    with pytest.raises(ValueError, match="from 2 on that is unknown: see candidates"):
        SelectSpec(**fields).mask(2, 2, np.array([4, UNKNOWN_TOKEN]))


def test_a_mask_takes_an_unknown_token_that_no_clause_reads():
    spec = SelectSpec(prompt_tokens=[3], generation_positions=[1])
    assert spec.mask(2, 0, np.array([3, 4, UNKNOWN_TOKEN, UNKNOWN_TOKEN])).tolist() == [
        True,
        False,
        False,
        True,
    ]


def test_an_unknown_token_is_a_candidate_of_token_includes_and_of_no_token_exclude():
    spec = SelectSpec(prompt="all", generation_tokens=[3], exclude_generation_tokens=[4])
    assert spec.candidates(1, 1, np.array([UNKNOWN_TOKEN, 3, 4, 5])).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    "name", ["generation", "generation_tokens", "generation_positions", "generation_window"]
)
def test_each_generation_include_uses_the_generation(name):
    value = {"generation": "all", "generation_window": (0, 2)}.get(name, [1])
    assert SelectSpec(**{name: value}).uses_generation


def test_a_selection_of_the_prompt_alone_does_not_use_the_generation():
    assert not SelectSpec(prompt="all", exclude_prompt_tokens=[1]).uses_generation


# --- values --------------------------------------------------------------------------------------


def test_lists_that_name_the_same_things_make_equal_specs():
    spec = SelectSpec(prompt_positions=[2, -1, 2, 0], prompt_tokens={9, 4}, prompt_window=[0, 3])
    same = SelectSpec(prompt_positions=(-1, 0, np.int64(2)), prompt_tokens=[4, 9, 9], prompt_window=(0, 3))
    assert spec == same
    assert hash(spec) == hash(same)
    assert spec.prompt_positions == (-1, 0, 2)
    assert spec != SelectSpec(prompt_positions=[2, -1], prompt_tokens=[4, 9], prompt_window=(0, 3))


def test_positions_past_the_end_of_a_prompt_are_listed_as_clamped():
    spec = SelectSpec(prompt_positions=[-9, 0, 3, 7], exclude_prompt_positions=[5])
    assert spec.clamped(3) == (3, 5, 7)
    assert spec.clamped(4) == (5, 7)
    assert spec.clamped(8) == ()


def test_clamping_warns_once_and_names_the_position_and_the_prompt_length():
    far, near = SelectSpec(prompt_positions=[9]), SelectSpec(prompt_positions=[0])
    with pytest.warns(UserWarning, match="prompt 2 has 4 tokens, so position 9 means") as caught:
        warn_clamped([None, near, far, far], [1, 1, 4, 5])
    assert len(caught) == 1
    assert "position 3; 2 of 4 prompts" in str(caught[0].message)


def test_no_clamping_gives_no_warning():
    warn_clamped([None, SelectSpec(prompt_positions=[3, -9])], [1, 4])


# --- wire form -----------------------------------------------------------------------------------


@unhurried
@given(fields=valid_fields)
def test_a_spec_survives_json_with_its_keys_in_order(fields):
    spec = SelectSpec(**fields)
    assert list(spec.to_wire()) == FIELDS
    assert SelectSpec.from_wire(json.loads(json.dumps(spec.to_wire()))) == spec


def test_the_wire_form_holds_plain_lists():
    wire = SelectSpec(prompt_positions=(np.int64(3), 1), generation_window=(np.int32(0), None)).to_wire()
    assert wire == dict.fromkeys(FIELDS) | {"prompt_positions": [1, 3], "generation_window": [0, None]}
    assert all(type(number) is int for number in wire["prompt_positions"])


def test_an_unknown_wire_key_is_refused_with_the_nearest_name():
    with pytest.raises(SettingsError, match="'promt_windows': the nearest valid name is 'prompt_window'"):
        SelectSpec.from_wire({"prompt": "all", "promt_windows": [0, 3]})


def test_a_wire_key_that_is_no_text_is_refused():
    with pytest.raises(SettingsError, match="unknown selection field 3"):
        SelectSpec.from_wire({3: "all"})


def test_a_wire_dict_is_checked_like_the_constructor():
    with pytest.raises(SettingsError, match=r"prompt_tokens: -1 is not"):
        SelectSpec.from_wire({"prompt_tokens": [-1]})


def test_a_selection_is_taken_as_a_spec_a_dict_or_nothing():
    spec = SelectSpec(prompt_positions=[-1])
    assert coerce_select(spec) is spec
    assert coerce_select({"prompt_positions": [-1]}) == spec
    assert coerce_select(None) is None


@pytest.mark.parametrize("value", ["all", [-1], 3])
def test_a_selection_of_another_type_is_refused(value):
    with pytest.raises(SettingsError, match="a selection is a SelectSpec or a dict of its fields, not"):
        coerce_select(value)


# --- the two lists of the wrappers ---------------------------------------------------------------


def test_lists_of_tokens_and_positions_unite_over_prompt_and_completion():
    spec = select_from_lists(token_ids=[7], positions=[-1])
    assert mask(spec, [7, 8, 9], [8, 7]) == [True, False, True, False, True]


def test_each_list_works_without_the_other_and_none_gives_no_selection():
    assert mask(select_from_lists([7], None), [7, 8, 9], [8, 7]) == [True, False, False, False, True]
    assert mask(select_from_lists(None, [0, -1]), [7, 8, 9], [8, 7]) == [True, False, True, False, False]
    assert select_from_lists(None, None) is None


@pytest.mark.parametrize(("token_ids", "positions", "name"), [([], [1], "token_ids"), ([1], [], "positions")])
def test_an_empty_list_of_the_wrappers_is_refused_by_the_callers_name(token_ids, positions, name):
    with pytest.raises(ValueError, match=rf"^{name}=\[\]: an empty list"):
        select_from_lists(token_ids, positions)


def test_a_negative_token_id_of_the_wrappers_is_refused_by_the_callers_name():
    with pytest.raises(ValueError, match=r"^token_ids: -1 is not"):
        select_from_lists([-1], None)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, dict.fromkeys(FIELDS), {"exclude_prompt_positions": [0]}])
def test_a_spec_without_an_include_is_refused(fields):
    with pytest.raises(SettingsError, match="selects nothing: set prompt='all'"):
        SelectSpec(**fields)


@pytest.mark.parametrize(("covered", "other"), [("prompt", "generation"), ("generation", "prompt")])
@pytest.mark.parametrize("kind", ["tokens", "positions", "window"])
def test_an_exclude_of_a_phase_without_an_include_is_refused(covered, other, kind):
    with pytest.raises(SettingsError, match=f"exclude_{other}_ fields are set, .* add {other}='all'"):
        SelectSpec(**{covered: "all", f"exclude_{other}_{kind}": [0, 1]})


@pytest.mark.parametrize("name", ["prompt", "generation"])
@pytest.mark.parametrize("value", ["last", "", True, ["all"], np.array(["all", "all"])])
def test_a_phase_takes_only_all(name, value):
    with pytest.raises(SettingsError, match=f"^{name}=.*must be 'all'"):
        SelectSpec(**{name: value})


LISTS = [name for name in FIELDS if name.endswith(("_tokens", "_positions"))]
WINDOWS = [name for name in FIELDS if name.endswith("_window")]
STEPS = ["generation_positions", "exclude_generation_positions"]


def refusal(name: str, value: object) -> str:
    with pytest.raises(SettingsError) as caught:
        SelectSpec(**({"prompt": "all", "generation": "all"} | {name: value}))
    return str(caught.value)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("empty", [[], (), set(), range(0)])
def test_an_empty_list_is_refused(name, empty):
    assert refusal(name, empty).startswith(f"{name}={empty!r}: an empty list matches nothing")


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("value", [3, "12", b"12", {1: 2}, np.arange(3)])
def test_a_value_that_is_no_list_is_refused(name, value):
    assert refusal(name, value) == f"{name}={value!r}: must be a list of integers"


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("number", [True, np.True_, 1.0, "1", None, [1], 2**63])
def test_a_number_that_is_no_integer_is_refused(name, number):
    assert refusal(name, [0, number]).startswith(f"{name}: {number!r} is not a 64-bit integer")


@pytest.mark.parametrize("name", [*STEPS, *(name for name in LISTS if name.endswith("_tokens"))])
def test_a_negative_token_id_or_decode_step_is_refused(name):
    assert refusal(name, [4, -2]) == f"{name}: -2 is not a 64-bit integer of 0 or more"


@pytest.mark.parametrize("name", ["generation_window", "exclude_generation_window"])
@pytest.mark.parametrize("window", [(-2, None), (0, -2), (-2, 4)])
def test_a_negative_bound_of_a_generation_window_is_refused(name, window):
    assert refusal(name, window) == f"{name}: -2 is not a 64-bit integer of 0 or more"


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("window", [(3, 3), (5, 2), (0, 0)])
def test_an_empty_window_is_refused(name, window):
    assert refusal(name, window).startswith(f"{name}={window} is empty: stop comes after start")


@pytest.mark.parametrize("name", ["prompt_window", "exclude_prompt_window"])
@pytest.mark.parametrize("window", [(-2, -5), (-2, -2), (-3, 0)])
def test_an_empty_window_from_the_end_is_refused(name, window):
    assert refusal(name, window).startswith(f"{name}={window} is empty: stop comes after start")


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("value", [3, "12", (1,), (1, 2, 3), {1, 2}, {0: 1, 1: 2}])
def test_a_window_that_is_no_pair_is_refused(name, value):
    assert refusal(name, value) == f"{name}={value!r}: must be two integers (start, stop); stop may be None"


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(("window", "bound"), [((None, 3), None), ((True, 3), True), ((0, 1.5), 1.5)])
def test_a_window_bound_that_is_no_integer_is_refused(name, window, bound):
    assert refusal(name, window).startswith(f"{name}: {bound!r} is not a 64-bit integer")


def test_a_misspelt_field_of_the_constructor_is_refused():
    with pytest.raises(TypeError, match="promt_positions"):
        SelectSpec(promt_positions=[-1])
