"""Hashed names: what analyses read off them stays, and nothing else."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING

import pytest

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.questions import forward_passes as questions
from gpusight.analysis.steps import step_list as steps
from gpusight.naming import host_names
from gpusight.naming.kernel_names import classify
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.readers.open import open_trace
from gpusight.sharing.hashed_names import hash_kernel, hash_range, hash_text
from gpusight.sharing.known_words import kept_words
from tests.shared import EVERY_REPORT, EVERY_SQLITE, EVERY_TORCH_TRACE, OWN, needs_shared

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.trace.trace import Trace

SALT = b"salt"
HASH = r"[ghjkpxyz]{16}"
CAPITAL = r"[GHJKPXYZ][ghjkpxyz]{15}"


@pytest.mark.parametrize(
    ("name", "hashed"),
    [
        ("train_step_12", "train_step_12"),
        ("ProfilerStep#3", "ProfilerStep#3"),
        ("acme train step 12", f"{HASH} train step 12"),
        ("acme-project_secret.place", HASH),
        ("model.layers.3.acme", f"model\\.layers\\.3\\.{HASH}"),
        ("acme12", f"{HASH}12"),
        ("10.11.12.13", HASH),
        ("2024-11-15 data", f"{HASH} data"),
        ("a1b2c3d4", f"{HASH}4"),
        ("S3CR3T", CAPITAL),
        ("id 123456789", f"id {HASH}"),
        ("日本 forward", f"{HASH} forward"),
        ("/home/alice/train.py", f"/{HASH}/train\\.py"),
        ("", ""),
    ],
)
def test_words_and_counters_stay_and_the_rest_is_hashed(name: str, hashed: str) -> None:
    assert re.fullmatch(hashed, hash_range(name, SALT))


def test_what_a_kernel_does_stays() -> None:
    name = "void acme::flash_fwd_kernel<AcmeTraits<128, half_t>>(acme::Params)"
    hashed = hash_kernel(name, SALT)
    assert "acme" not in hashed.lower()
    assert classify(hashed).category == "attention"
    assert classify(hashed).precision == classify(name).precision


def test_equal_names_stay_equal_and_others_do_not() -> None:
    names = [f"acme {word} {n}" for word in ("alpha", "omega", "zeta") for n in range(5)]
    hashed = [hash_range(name, SALT) for name in names]
    assert len(set(hashed)) == len(names)
    assert hashed == [hash_range(name, SALT) for name in names]
    assert hash_text("alpha", SALT) != hash_text("alpha", b"other salt")


def test_families_of_ranges_stay() -> None:
    names = [f"acme layer{n}" for n in (1, 2, 3)]
    assert len({re.sub(r"\d+", "#", hash_range(name, SALT)) for name in names}) == 1


@pytest.mark.parametrize(
    "name", ["_ZN4acme6kernelILi128EEEvPf", "k" * 50_000, "\0\x1b[31m", "<" * 500]
)
def test_odd_names(name: str) -> None:
    for hashed in (hash_kernel(name, SALT), hash_range(name, SALT)):
        assert "acme" not in hashed
        assert hashed.isprintable()
        assert len(hashed) <= len(name) + 32


def test_every_category_has_a_name_to_fall_back_to() -> None:
    from gpusight.sharing.hashed_names import _BY_CATEGORY

    assert set(_BY_CATEGORY) == set(CATEGORIES)
    for category, base in _BY_CATEGORY.items():
        assert classify(f"{base}_{hash_text('x', SALT)}").category == category


def test_hashes_are_no_words() -> None:
    for number in range(2000):
        hashed = hash_text(str(number), SALT)
        assert re.fullmatch(HASH, hashed)
        assert classify(hashed).category == "custom"
        assert steps.read_name(hashed) is None
        assert steps.phase_of(hashed) is None
        assert not host_names.is_input(hashed)


def test_the_vocabulary_has_the_words_for_forward_passes_and_attention() -> None:
    names: set[str] = set()
    for name, value in vars(questions).items():
        if isinstance(value, frozenset) and name != "_NETWORK":  # these are categories of kernels
            names |= {word for word in value if isinstance(word, str) and len(word) > 1}
    assert names
    assert names <= kept_words(), names - kept_words()


def test_the_vocabulary_has_the_words_for_input() -> None:
    sets = (
        host_names._CERTAIN,
        host_names._ACTIONS,
        host_names._THINGS,
        host_names._ALONE,
        host_names._FILLERS,
    )
    for words in (*sets, host_names._OTHERWISE, host_names._ARRIVALS, host_names._REQUESTS):
        assert words <= kept_words(), words - kept_words()


@pytest.mark.parametrize(
    "name",
    [
        "train_step_3", "Iteration 7", "minibatch#2", "timestep 4", "eval 3", "decode 12",
        "prefill", "forward pass 5", "execute_context_3", "frame 9", "optimizer.step", "zero_grad",
        "scheduler",
        "load next batch", "warm up", "backward", "autograd::engine::evaluate_function: Addmm",
        "clip_grad_norm", "lr scheduler", "all_reduce", "nccl:broadcast", "reduce scatter", "h2d",
        "halo exchange", "DataLoader.__next__", "tokenize", "wait for data", "attention scores",
        "softmax", "qk matmul", "weighted sum v", "(F)", "[pl][module]Net.training_step",
    ],
)  # fmt: skip
def test_names_mean_to_every_analysis_what_they_meant(name: str) -> None:
    _check_meaning(name)


def _check_meaning(name: str) -> None:
    hashed = hash_range(name, SALT)
    before, after = steps.read_name(name), steps.read_name(hashed)
    assert (before and before[1]) == (after and after[1]), name
    for function in (
        steps.phase_of,
        host_names.is_input,
        host_names.is_compiling,
        host_names.is_loading,
        questions.forward_rank,
        questions.attention_part,
    ):
        assert function(hashed) == function(name), (name, hashed)


def _check_capture(path: Path) -> None:
    trace = open_trace(path, cache=False)
    for name in _names(trace, "kernels"):
        hashed, known = classify(hash_kernel(name, SALT)), classify(name)
        for read in (attrgetter("category"), attrgetter("precision"), attrgetter("tensor_core")):
            assert read(hashed) == read(known), name
    for name in _names(trace, "ranges")[:3000]:
        _check_meaning(name)


def _names(trace: Trace, table: str) -> list[str]:
    return names_of(trace.table(table, ["name"])["name"]) if trace.has(table) else []


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_names_of_captures(path: Path) -> None:
    _check_capture(path)


@needs_shared
@pytest.mark.parametrize(
    "path", [*EVERY_SQLITE, *EVERY_REPORT, *EVERY_TORCH_TRACE], ids=lambda p: p.name
)
def test_names_of_every_capture(path: Path) -> None:
    _check_capture(path)
