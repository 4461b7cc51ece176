"""A full collection leaves out what was there before a capture, and finds it again afterwards."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from easysteer_data.engine.frozen_heap import FrozenHeap


@pytest.fixture(autouse=True)
def _nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()  # an engine in this process has frozen what there was at its start
    monkeypatch.setattr(FrozenHeap, "is_of_others", False)


class Node:
    """An object in a cycle of its own, which only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def test_only_what_the_block_makes_is_collected_in_it() -> None:
    older = Node()
    found_older = weakref.ref(older)
    with FrozenHeap():
        newer = Node()
        found_newer = weakref.ref(newer)
        del older, newer
        gc.collect()
        assert found_newer() is None
        assert found_older() is not None
    gc.collect()
    assert found_older() is None
    assert gc.get_freeze_count() == 0


def test_a_heap_that_others_froze_stays_frozen_and_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    found = weakref.ref(node)
    gc.freeze()
    try:
        with FrozenHeap():
            pass
        del node
        gc.collect()
        assert found() is not None
        with monkeypatch.context() as patched:
            patched.setattr(gc, "get_freeze_count", lambda: pytest.fail("counted again"))
            with FrozenHeap():
                pass
        assert found() is not None
    finally:
        gc.unfreeze()
    gc.collect()
    assert found() is None


def test_captures_that_overlap_keep_it_frozen_until_the_last_one_ends() -> None:
    first, second = FrozenHeap(), FrozenHeap()
    node = Node()
    found = weakref.ref(node)
    with first:
        second.__enter__()
    del node
    gc.collect()
    assert found() is not None
    second.__exit__(None, None, None)
    gc.collect()
    assert found() is None
    assert not FrozenHeap.is_of_others


def test_a_heap_that_others_have_let_go_is_frozen_again() -> None:
    gc.freeze()
    with FrozenHeap():
        pass
    gc.unfreeze()
    assert FrozenHeap.is_of_others
    FrozenHeap.look_again()
    node = Node()
    found = weakref.ref(node)
    with FrozenHeap():
        del node
        gc.collect()
        assert found() is not None


def test_the_few_objects_that_python_freezes_at_its_start_are_not_the_users() -> None:
    # As Python 3.12 does; in a process of its own, whose heap is as small as it is then.
    script = """
import gc
gc.freeze()
few = gc.get_freeze_count()
from easysteer_data.engine.frozen_heap import FrozenHeap
with FrozenHeap():
    print(few, gc.get_freeze_count() > few)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    few, is_frozen = done.stdout.split()
    assert 0 < int(few) < 10_000
    assert is_frozen == "True"
