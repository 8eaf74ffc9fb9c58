"""Tests of bench/load/sweep.py: the order of its loads, and what it finds."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def sweep():
    spec = importlib.util.spec_from_file_location("sweep", ROOT / "bench/load/sweep.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_load_follows_each_other_one_once(sweep):
    loads = [("clients", n) for n in sweep.CLIENTS] + [("rate", n) for n in sweep.RATES]
    walk = sweep.circle(loads)
    pairs = list(zip(walk, walk[1:]))
    assert sorted(pairs) == sorted((a, b) for a in loads for b in loads if a != b)


def visit(tokens, first):
    return {"output_throughput": tokens, "median_ttft_ms": first, "p99_ttft_ms": first, "p99_itl_ms": 5}


def test_a_load_below_its_neighbours_is_found(sweep):
    good = {("clients", 1): [visit(100, 10)] * 2, ("clients", 2): [visit(190, 11), visit(200, 12)], ("rate", 5): [visit(50, 10)]}
    assert sweep.faults(good) == []
    [hole] = sweep.faults(good | {("clients", 4): [visit(400, 12), visit(150, 12)]})
    assert "clients 4: 150 tokens a second" in hole
    [crawl] = sweep.faults(good | {("rate", 15): [visit(150, 12), visit(150, 600)]})
    assert "rate 15: the first token after 12 to 600 ms" in crawl
