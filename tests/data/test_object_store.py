"""References and the objects behind them, with and without Ray."""

import pytest
import ray

from raysim.data.object_store import by_reference, fetch, put


def test_without_ray_an_object_is_its_own_reference():
    value = [1, 2]
    assert put(value) is value
    assert fetch(value) is value
    assert by_reference({0: value, 1: value, 2: [1, 2]}) == [(value, [0, 1]), ([1, 2], [2])]


@pytest.mark.usefixtures("local_ray")
def test_a_reference_that_travelled_is_still_the_same():
    """Actors get copies of the references, which are equal but not identical."""
    first, second = put(["a"]), put(["b"])

    @ray.remote(num_cpus=0)
    def grouped(references):
        return [(fetch(reference), keys) for reference, keys in by_reference(references)]

    assert ray.get(grouped.remote({0: first, 1: second, 2: first})) == [(["a"], [0, 2]), (["b"], [1])]
