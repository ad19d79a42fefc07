"""Which endpoint a group goes to."""

from collections import Counter

from vcap_jax.reward.routing import preference

ADDRESSES = [f"http://judge-{k}:8000/v1" for k in range(5)]


def test_routes_are_spread_evenly_and_stay_where_they_are() -> None:
    routes = [f"media {k}" for k in range(5000)]
    first = {route: preference(route, ADDRESSES)[0] for route in routes}
    assert all(sorted(preference(route, ADDRESSES)) == [0, 1, 2, 3, 4] for route in routes[:50])
    counts = Counter(first.values())
    assert min(counts.values()) > 900
    assert max(counts.values()) < 1100
    # Without the last address only its own routes move, each to its second choice.
    for route in routes:
        ranked = preference(route, ADDRESSES)
        now = preference(route, ADDRESSES[:4])[0]
        assert now == (ranked[0] if ranked[0] != 4 else ranked[1])


def test_the_order_of_the_addresses_does_not_matter() -> None:
    backwards = ADDRESSES[::-1]
    for k in range(50):
        chosen = ADDRESSES[preference(f"r{k}", ADDRESSES)[0]]
        assert backwards[preference(f"r{k}", backwards)[0]] == chosen
