"""The minimum cut: against networkx on random networks, and fast on deep ones."""
import random

import networkx as nx
import pytest

from tracejit.passes.remat import Network


def random_network(seed):
    chance = random.Random(seed)
    n = chance.randint(2, 30)
    edges = [(chance.randrange(n), chance.randrange(n), chance.choice([0, 1, 7, 100, 1 << 40])) for _ in range(n * 4)]
    return n, [(a, b, c) for a, b, c in edges if a != b]


@pytest.mark.parametrize("seed", range(60))
def test_flow_equals_that_of_networkx(seed):
    n, edges = random_network(seed)
    network, graph = Network(), nx.DiGraph()
    graph.add_nodes_from(range(n))
    for a, b, capacity in edges:
        network.edge(a, b, capacity)
        before = graph.edges[a, b]["capacity"] if graph.has_edge(a, b) else 0
        graph.add_edge(a, b, capacity=before + capacity)
    assert network.maximum_flow(0, n - 1) == nx.maximum_flow_value(graph, 0, n - 1)
    near = network.reaches(n - 1)
    inside = {v for v in range(n) if v in network.number and network.number[v] in near}
    crossing = sum(c for a, b, c in edges if a not in inside and b in inside)
    assert crossing == nx.minimum_cut_value(graph, 0, n - 1)


def test_a_network_of_five_thousand_nodes_in_a_chain():
    network = Network()
    for k in range(5000):
        network.edge(("in", k), ("out", k), 1000 - k % 7)
        network.edge(("out", k), ("in", k + 1), 1 << 62)
        if k % 3 == 0:
            network.edge("source", ("in", k), 1 << 62)
        network.edge(("out", k), "sink", 1)
    network.edge(("in", 5000), "sink", 1 << 62)
    assert network.maximum_flow("source", "sink") > 0
