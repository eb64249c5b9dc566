"""The shipped DDTree module, as the series makes it, against brute force."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kit.ddtree import CASES, Case, cases, check_invariants, ddtree_module, paths_of, series_module

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

Build = Any


@pytest.fixture(scope="module", name="path")
def _path(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return series_module(tmp_path_factory.mktemp("ddtree"))


@pytest.fixture(scope="module", name="ddtree")
def _ddtree(path: pathlib.Path) -> Any:
    return ddtree_module(path)


def small_trees(ddtree: Any) -> list[tuple[Case, Any]]:
    return [(c, ddtree.build_tree(c.logits, budget=c.budget, root_token=7)) for c in cases(seed=3, count=60)]


def test_invariants_hold_on_random_cases(ddtree: Any) -> None:
    held = 0
    for case in cases():
        check_invariants(ddtree, case)
        held += 1
    assert held == CASES


def test_one_hot_positions_give_dflashs_greedy_chain(ddtree: Any) -> None:
    logits = np.full((5, 9), -np.inf)
    greedy = [3, 0, 8, 0, 1]
    logits[np.arange(5), greedy] = 0.0
    tree = ddtree.build_tree(logits, budget=64, root_token=2)
    assert (tree.num_nodes, tree.tokens.tolist(), tree.is_chain) == (5, [2, *greedy], True)


def test_a_small_budget_on_peaked_positions_gives_the_greedy_chain(ddtree: Any) -> None:
    logits: Any = np.zeros((4, 50))
    logits[np.arange(4), [9, 8, 7, 6]] = 20.0
    tree = ddtree.build_tree(logits, budget=4, root_token=0)
    assert (tree.tokens.tolist(), tree.is_chain) == ([0, 9, 8, 7, 6], True)
    assert not ddtree.build_tree(logits, budget=5, root_token=0).is_chain


def test_it_needs_numpy_alone(path: pathlib.Path) -> None:
    program = (
        "import importlib.util as u, sys\n"
        f"s = u.spec_from_file_location('m', {str(path)!r}); m = u.module_from_spec(s)\n"
        "s.loader.exec_module(m)\n"
        "assert not {'torch', 'sglang'} & set(sys.modules)\n"
        "print(m.build_tree([[0.0, 1.0]], budget=1, root_token=5).tokens.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[5, 1]\n"


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_equal_values_rank_by_id_and_paths_by_their_ranks(ddtree: Any, dtype: type) -> None:
    logits: Any = np.ones((3, 1000), dtype=dtype)
    tree = ddtree.build_tree(logits, budget=5, root_token=0)
    assert paths_of(tree)[1:] == [(0,), (1,), (2,), (3,), (4,)]
    two: Any = np.zeros((2, 3), dtype=dtype)
    two[1] = [0, 100, 0]
    assert paths_of(ddtree.build_tree(two, budget=6, root_token=0))[1:] == [
        (0,), (0, 1), (1,), (1, 1), (2,), (2, 1)
    ]  # fmt: skip


def test_values_equal_to_the_last_kept_one_are_kept_by_id(ddtree: Any) -> None:
    rows = np.random.default_rng(1).integers(0, 4, size=(200, 60)).astype(np.float32)
    ids, log_probs = ddtree.rank_tokens(rows, 17)
    for row, found, scores in zip(rows, ids, log_probs, strict=True):
        expected = sorted(range(60), key=lambda token: (-row[token], token))[:17]
        assert found.tolist() == expected
        reference = np.log(np.exp(row.astype(float)) / np.exp(row.astype(float)).sum())
        assert np.allclose(scores, reference[expected], rtol=1e-12)


def test_ranks_from_elsewhere_give_the_same_tree(ddtree: Any) -> None:
    for case, tree in small_trees(ddtree):
        ranks = ddtree.rank_tokens(case.logits, case.budget + 2)
        other = ddtree.build_tree_from_ranks(*ranks, budget=case.budget, root_token=7)
        assert other.tokens.tolist() == tree.tokens.tolist()
        assert other.parents.tolist() == tree.parents.tolist()


def test_a_row_sees_itself_and_its_ancestors_only(ddtree: Any) -> None:
    for _, tree in small_trees(ddtree):
        paths = paths_of(tree)
        expected = [[key == query[: len(key)] for key in paths] for query in paths]
        assert tree.visibility().tolist() == expected
        assert tree.positions(100).tolist() == [100 + len(path) for path in paths]


def test_padding_is_seen_by_nothing_and_sees_nothing(ddtree: Any) -> None:
    for _, tree in small_trees(ddtree):
        rows, width = tree.num_rows, tree.num_rows + 3
        padded = tree.pad(width, start=40, pad_token=9)
        assert padded.num_rows == rows
        assert np.array_equal(padded.visibility[:rows, :rows], tree.visibility())
        assert not padded.visibility[rows:].any()
        assert not padded.visibility[:, rows:].any()
        assert padded.tokens.tolist() == [*tree.tokens.tolist(), 9, 9, 9]
        assert padded.positions.tolist() == [*tree.positions(40).tolist(), 40, 40, 40]
        assert padded.parents.tolist()[rows:] == [-1, -1, -1]


def test_the_walk_emits_what_the_target_alone_would_have(ddtree: Any) -> None:
    for case, tree in small_trees(ddtree):
        paths = paths_of(tree)

        def target(context: tuple[int, ...], words: int = len(case.logits[0])) -> int:
            return random.Random(str(context)).randrange(words)  # noqa: S311  a deterministic target

        alone: list[int] = []
        for _ in range(case.horizon + 1):
            alone.append(target(tuple(alone)))
        walk = tree.walk([target(path) for path in paths] + [0, 0])
        assert list(walk.tokens) == alone[: len(walk.tokens)]
        assert walk.bonus == walk.tokens[-1]
        assert len(walk.tokens) == walk.num_accepted + 1 == len(walk.path)
        assert [paths[node] for node in walk.path] == [tuple(alone[:n]) for n in range(len(walk.path))]
        assert tuple(alone[: len(walk.path)]) not in paths, "the bonus token left the tree"


def test_compaction_gathers_before_it_writes(ddtree: Any) -> None:
    rows = np.arange(10) * 10
    ddtree.compact(rows, (0, 1, 3, 6))
    assert rows.tolist() == [0, 10, 30, 60, 40, 50, 60, 70, 80, 90]
    assert ddtree.Walk((0, 1, 2), (5, 6, 7), 7).is_in_place
    assert not ddtree.Walk((0, 2), (5, 6), 6).is_in_place


def test_eagles_form_lists_the_same_children_best_first(ddtree: Any) -> None:
    for _, tree in small_trees(ddtree):
        form = tree.first_child_next_sibling(tree.num_rows + 2)
        assert form.retrieve_index.tolist() == [*range(tree.num_rows), -1, -1]
        for parent in range(tree.num_rows):
            found, node = [], int(form.retrieve_next_token[parent])
            while node != -1:
                found.append(node)
                node = int(form.retrieve_next_sibling[node])
            assert found == [n for n in range(1, tree.num_rows) if tree.parents[n] == parent]
        assert form.retrieve_next_token.tolist()[tree.num_rows :] == [-1, -1]


@pytest.mark.parametrize("cost", [lambda rows: 5 + rows, lambda rows: 8 + rows**1.5 / 3, lambda _: 1.0])
def test_the_stop_rule_finds_the_best_rate(ddtree: Any, cost: Callable[[int], float]) -> None:
    for case in cases(seed=5, count=80):
        whole = ddtree.build_tree(case.logits, budget=40, root_token=7)
        gains = [0.0, *itertools.accumulate(np.exp(whole.scores[1:]).tolist())]
        rates = [(1 + gain) / cost(nodes + 1) for nodes, gain in enumerate(gains)]
        tree = ddtree.build_tree(case.logits, budget=40, root_token=7, round_cost=cost)
        assert rates[tree.num_nodes] == pytest.approx(max(rates), rel=1e-12)
        assert paths_of(tree) == paths_of(whole)[: tree.num_rows]


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        ([1.0, 2.0], r"shape \(2,\)"),
        ([[np.nan, 1.0, 2.0]], "position 0 are no distribution"),
        ([[0.0, 1.0], [np.inf, 0.0]], "position 1 are no distribution"),
        ([[-np.inf, -np.inf]], "position 0 are no distribution"),
    ],
)
def test_what_is_no_distribution_is_refused(ddtree: Any, logits: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ddtree.build_tree(logits, budget=1, root_token=0)


def test_other_wrong_arguments_are_refused(ddtree: Any) -> None:
    tree = ddtree.build_tree([[0.0, 1.0]], budget=2, root_token=0)
    with pytest.raises(ValueError, match="a budget of -1"):
        ddtree.build_tree([[0.0, 1.0]], budget=-1, root_token=0)
    with pytest.raises(ValueError, match="a width of 2 for 3 rows"):
        tree.pad(2, start=0)
    with pytest.raises(ValueError, match="2 target choices for 3 rows"):
        tree.walk([0, 1])
    with pytest.raises(ValueError, match="not ranked"):
        ddtree.build_tree_from_ranks([[0, 1]], [[-2.0, -1.0]], budget=1, root_token=0)
