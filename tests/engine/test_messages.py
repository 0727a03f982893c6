import pickle

from raysim.engine.messages import ClientReport, Reports

ONE = ClientReport(7, samples=3, seconds=0.5, terms={"ce": 1.0, "moon": 2.0}, bytes_up=10, shapes={"a/x": (2,)})
OTHER = ClientReport(4, samples=5, seconds=0.1, terms={"ce": 3.0}, bytes_up=1, shapes={"a/x": (3,)}, has_state=True)
FAILED = ClientReport(9, errors=("once", "twice"), skipped=True, shapes={"a/x": (2,)})
COUNTED = ClientReport(2, samples=1, flops=1e9, profile=("table", "trace"))


def test_columns_have_a_row_for_each_client_and_what_few_have_by_client():
    found = Reports.of([ONE, OTHER, FAILED, COUNTED])
    assert (found.clients, found.samples, found.bytes_up) == ([7, 4, 9, 2], [3, 5, 0, 1], 11)
    assert found.terms == {"ce": [1.0, 3.0, None, None], "moon": [2.0, None, None, None]}
    assert found.shapes == {"a/x": {(2,): [7, 9], (3,): [4]}}
    assert (found.with_state, found.skipped, found.errors) == ([4], [9], {9: ("once", "twice")})
    assert (found.flops, found.profile) == ({2: 1e9}, ("table", "trace"))
    assert found.not_skipped() == [7, 4, 2]


def test_joining_calls_gives_the_columns_of_all_their_clients():
    everyone = [ONE, OTHER, FAILED, COUNTED]
    for cut in range(5):
        calls = [Reports.of(everyone[:cut]), Reports.of(everyone[cut:])]
        assert Reports.joined(pickle.loads(pickle.dumps(calls))) == Reports.of(everyone)  # noqa: S301
    assert Reports.joined([]) == Reports()


def test_joining_leaves_the_calls_as_they_are():
    calls = [Reports.of([ONE]), Reports.of([OTHER])]
    Reports.joined(calls)
    assert calls == [Reports.of([ONE]), Reports.of([OTHER])]
