"""What a DDTree builder must do, checked by brute force on any copy of ``ddtree_tree.py``.

The expected values come from enumerating every path of a small vocabulary with :mod:`math`, never from the
module itself. I1 to I11 are the invariants of the description that the module was written from.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import pathlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostenv.spec.patchapply import apply_patch
from hostenv.spec.series import load_series

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

MODULE_PATH = "sglang/srt/speculative/ddtree_tree.py"
SERIES = pathlib.Path(__file__).parents[2] / "patches" / "sglang-0.5.15.post1"
CASES = 400

Path = tuple[int, ...]


def series_module(folder: pathlib.Path) -> pathlib.Path:
    """Write the module as the shipped series makes it below ``folder``; return its path.

    The file is new in the series, so no wheel is needed to compute it.
    """
    target = folder / "ddtree_tree.py"
    changes = [c for p in load_series(SERIES).patches for c in p.changes if c.target == MODULE_PATH]
    state = apply_patch(changes, lambda _: None).files[MODULE_PATH]
    assert state is not None
    target.write_bytes(state.content)
    return target


def ddtree_module(path: pathlib.Path) -> ModuleType:
    """Load the module that lies at ``path``, by path, without its package."""
    spec = importlib.util.spec_from_file_location("ddtree_tree_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A small input, with every path and its log-probability."""

    logits: list[list[float]]
    budget: int
    scores: dict[Path, float]

    @property
    def horizon(self) -> int:
        """Number of positions."""
        return len(self.logits)


def cases(seed: int = 20261201, count: int = CASES) -> Iterator[Case]:
    """Yield random small cases: smooth, peaked and tied distributions, budgets from 0 to above all paths."""
    source = random.Random(seed)  # noqa: S311  test data
    for _ in range(count):
        horizon, vocabulary = source.randint(1, 4), source.randint(1, 5)
        scale = source.choice([0.3, 1.0, 4.0, 12.0])
        rows = [[source.gauss(0, scale) for _ in range(vocabulary)] for _ in range(horizon)]
        if source.random() < 0.2:
            rows = [[float(round(value / scale)) for value in row] for row in rows]
        if source.random() < 0.2 and vocabulary > 1:
            rows[source.randrange(horizon)][source.randrange(vocabulary)] = -math.inf
        scores = path_scores(rows)
        yield Case(logits=rows, budget=source.randint(0, min(40, len(scores) + 3)), scores=scores)


def path_scores(logits: Sequence[Sequence[float]]) -> dict[Path, float]:
    """Return every possible path (all prefixes, impossible tokens left out) with its log-probability."""
    rows = []
    for row in logits:
        total = math.log(math.fsum(math.exp(value) for value in row))
        rows.append([value - total for value in row])
    scores: dict[Path, float] = {}
    for depth in range(1, len(rows) + 1):
        for path in itertools.product(range(len(rows[0])), repeat=depth):
            score = math.fsum(rows[at][token] for at, token in enumerate(path))
            if score > -math.inf:
                scores[path] = score
    return scores


def paths_of(tree: Any) -> list[Path]:
    """Return the token path of every node, by following parents; the root's is empty."""
    paths: list[Path] = [()]
    for node in range(1, tree.num_nodes + 1):
        paths.append((*paths[tree.parents[node]], int(tree.tokens[node])))
    return paths


def check_invariants(module: ModuleType, case: Case) -> None:
    """Hold one case to I1 to I9 and I11 (I10 speaks of particular distributions)."""
    tree = module.build_tree(case.logits, budget=case.budget, root_token=7)
    paths = paths_of(tree)[1:]
    chosen = set(paths)

    assert len(paths) == len(chosen) == min(case.budget, len(case.scores)), "I1"
    assert all(path[:-1] in chosen for path in paths if len(path) > 1), "I2"
    _check_siblings(case, chosen)
    assert all(a >= b for a, b in itertools.pairwise(tree.scores.tolist())), "I4"
    best = math.fsum(sorted(map(math.exp, case.scores.values()), reverse=True)[: case.budget])
    _close(math.fsum(math.exp(case.scores[path]) for path in paths), best, "I5")
    _close(tree.expected_accepted, best, "I5")
    _close(_expected_matched_depth(case, chosen), best, "I6")
    parents, depths = tree.parents.tolist(), tree.depths.tolist()
    assert all(parents[i] < i and depths[i] == depths[parents[i]] + 1 for i in range(1, len(parents))), "I7"
    larger = module.build_tree(case.logits, budget=case.budget + 1, root_token=7)
    assert paths_of(larger)[1 : len(paths) + 1] == paths, "I8"
    assert case.budget or (tree.num_nodes, parents, tree.tokens.tolist()) == (0, [-1], [7]), "I9"
    siblings = list(zip(parents[1:], tree.tokens[1:].tolist(), strict=True))
    assert len(set(siblings)) == len(siblings), "I11"
    for node, path in enumerate(paths, 1):
        _close(float(tree.scores[node]), case.scores[path], "score")


def _check_siblings(case: Case, chosen: set[Path]) -> None:
    """I3: whoever is in the tree has all siblings beside it that are more probable."""
    for path in chosen:
        for token in range(len(case.logits[0])):
            row = case.logits[len(path) - 1]
            if row[token] > row[path[-1]]:
                assert (*path[:-1], token) in chosen, "I3"


def _expected_matched_depth(case: Case, chosen: set[Path]) -> float:
    """Draw every whole sequence with its probability, and count how deep it stays in the tree."""
    full = [(path, score) for path, score in case.scores.items() if len(path) == case.horizon]
    return math.fsum(
        math.exp(score)
        * sum(all(path[:k] in chosen for k in range(1, d + 1)) for d in range(1, case.horizon + 1))
        for path, score in full
    )


def _close(found: float, expected: float, what: str) -> None:
    assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12), (what, found, expected)
