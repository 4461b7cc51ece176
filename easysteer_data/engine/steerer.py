"""The worker's side of steering: decides before each forward pass what is done to which token.

Runs inside vLLM's worker. An error of ours never breaks the engine's step: it is kept for the driver.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from easysteer_data.engine.geometry import StepGeometry
from easysteer_data.engine.steer_combine import combine
from easysteer_data.engine.steer_tables import SteerTables
from easysteer_data.engine.steer_wire import Recipe, SteerVector
from easysteer_data.engine.wire import RequestTag
from easysteer_data.errors import EasySteerDataError, EngineError
from easysteer_data.select import UNKNOWN_TOKEN, SelectSpec


class _Recipe:
    """A recipe's vectors, grouped by the tokens on which they act, and the combos of these groups so far."""

    def __init__(self, recipe: Recipe, tables: SteerTables) -> None:
        self._recipe = recipe
        self._tables = tables
        groups: dict[SelectSpec | None, list[SteerVector]] = {}
        for vector in recipe.vectors:
            groups.setdefault(vector.select, []).append(vector)
        self.selects = tuple(groups)
        self._groups = tuple(groups.values())
        self._combos: dict[int, int] = {}
        self.reads_generated = any(
            select is not None and (select.generation_tokens or select.exclude_generation_tokens)
            for select in self.selects
        )

    def combo(self, groups: int) -> int:
        """The combo in which the groups whose bits are set act together.

        Raises:
            SettingsError: they can't, or there is no room for them.
        """
        if groups not in self._combos:
            vectors = [v for g, group in enumerate(self._groups) if groups >> g & 1 for v in group]
            actions = {
                layer_id: action
                for layer_id in sorted(self._recipe.layer_ids)
                if (action := combine(vectors, layer_id, exclusive=self._recipe.exclusive)) is not None
            }
            self._combos[groups] = self._tables.add_combo(actions)
        return self._combos[groups]


@dataclass(frozen=True, slots=True)
class _Request:
    recipe: _Recipe
    prompt_token_ids: np.ndarray


class Steerer:
    """Steers the tagged requests between `start` and `stop`."""

    def __init__(self, tables: SteerTables) -> None:
        self.tables = tables
        self.error: str | None = None
        self._recipes: tuple[_Recipe, ...] = ()
        self._requests: dict[str, _Request] = {}
        self._map = np.full(tables.capacity, -1, dtype=np.int32)
        self._in_use = False

    @property
    def active(self) -> bool:
        """Whether any request may be steered."""
        return bool(self._recipes)

    def start(self, wires: Sequence[Mapping[str, Any]]) -> str | None:
        """Take the recipes; return what is wrong with them, None if nothing is."""
        self.stop()
        recipes = [Recipe.from_wire(wire) for wire in wires]
        self.tables.switch_on({layer_id for recipe in recipes for layer_id in recipe.layer_ids})
        self._recipes = tuple(_Recipe(recipe, self.tables) for recipe in recipes)
        try:
            for recipe in self._recipes:
                if len(recipe.selects) == 1:  # which groups meet is else known only from the tokens
                    recipe.combo(1)
        except EasySteerDataError as error:
            self.stop()
            return str(error)
        return None

    def stop(self) -> str | None:
        """Steer nothing any more; return the error that was kept, None if there was none."""
        error, self.error = self.error, None
        self.tables.switch_off()
        self._recipes, self._in_use = (), False
        self._requests.clear()
        return error

    def begin_step(self, scheduler_output: Any) -> None:
        """Note the requests that start and end with this step."""
        self._guard(lambda: self._note_requests(scheduler_output))

    def place(self, geometry: Callable[[], StepGeometry]) -> None:
        """Say what is done to each token of the step, before the forward pass."""
        self._guard(lambda: self._fill_map(geometry()))

    def _guard(self, action: Callable[[], None]) -> None:
        if not self.active or self.error is not None:
            return
        try:
            action()
        except EasySteerDataError as error:
            self._fail(str(error))
        except Exception:  # raised again in the driver
            self._fail(traceback.format_exc())

    def _fail(self, error: str) -> None:
        self.error = error
        self.tables.switch_off()

    def _note_requests(self, scheduler_output: Any) -> None:
        for req_id in scheduler_output.finished_req_ids:
            self._requests.pop(req_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            tag = RequestTag.of(new.sampling_params)
            # A preempted request of the V2 runner comes back as a new one; its prompt stays what it was.
            if tag is None or tag.recipe is None or new.req_id in self._requests:
                continue
            if new.prompt_token_ids is None:
                raise EngineError(f"prompt {tag.prompt}: embeddings have no tokens, so they can't be steered")
            tokens = np.asarray(new.prompt_token_ids, dtype=np.int64)
            self._requests[new.req_id] = _Request(self._recipes[tag.recipe], tokens)

    def _fill_map(self, geometry: StepGeometry) -> None:
        if not self._requests and not self._in_use:
            return
        self._map.fill(-1)
        first_token = 0
        for req_id, start, count in zip(geometry.req_ids, geometry.starts, geometry.counts, strict=True):
            stop_token = first_token + int(count)
            request = self._requests.get(req_id)
            if request is not None:
                tokens = _tokens(request, int(start), geometry, first_token, stop_token)
                self._map[first_token:stop_token] = _combos(request, int(start), tokens)
            first_token = stop_token
        self.tables.place(self._map)
        self._in_use = bool(self._requests)


def _tokens(
    request: _Request, start: int, geometry: StepGeometry, first_token: int, stop_token: int
) -> np.ndarray:
    """The tokens of this step of a request; generated ones are read, from the device, where a clause asks."""
    known = request.prompt_token_ids[start : start + stop_token - first_token]
    n_generated = stop_token - first_token - len(known)
    if n_generated and request.recipe.reads_generated:
        generated = geometry.input_ids[stop_token - n_generated : stop_token].cpu().numpy()
    else:
        generated = np.full(n_generated, UNKNOWN_TOKEN)
    return np.concatenate((known, generated))


def _combos(request: _Request, start: int, tokens: np.ndarray) -> np.ndarray:
    """What is done to each of these tokens, int32 [n]."""
    recipe, n_prompt = request.recipe, len(request.prompt_token_ids)
    groups = np.zeros(len(tokens), dtype=np.int64)
    for g, select in enumerate(recipe.selects):
        # No clause reads a token that is unknown here, so the candidates are the exact ones.
        acts = True if select is None else select.candidates(n_prompt, start, tokens)
        groups |= np.where(acts, 1 << g, 0)
    combos = np.full(len(tokens), -1, dtype=np.int32)
    for value in np.unique(groups).tolist():
        if value:
            combos[groups == value] = recipe.combo(value)
    return combos
