from raysim.engine.answers import misshapen
from raysim.engine.messages import ClientReport, Reports
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Pass


def reports(**shapes):
    """Clients 0, 1, 2, … with these shapes of things called a, b, …; None: it did not send that."""
    count = max(map(len, shapes.values()))
    sent = [{name: each[k] for name, each in shapes.items() if each[k] is not None} for k in range(count)]
    return Reports.joined(Reports.of([ClientReport(k, shapes=found)]) for k, found in reversed(list(enumerate(sent))))


def test_the_shape_most_have_is_right():
    assert misshapen(reports(a=[(3,), (4,), (4,), (4,)])) == {0: "its a has shape (3), other clients' (4)"}


def test_of_equally_many_the_lowest_client_is_right():
    assert misshapen(reports(a=[(2, 2), (4,), (4,), (2, 2)])).keys() == {1, 2}


def test_clients_that_send_nothing_have_no_shape():
    assert misshapen(reports(a=[None, (4,), None, (4,)], b=[(None, 3), None, None, (None, 3)])) == {}


def test_rows_are_free():
    found = misshapen(reports(a=[(None, 3), (None, 3), (None, 5)]))
    assert found == {2: "its a has shape (any, 5), other clients' (any, 3)"}


def test_a_pass_without_clients_has_no_empty_groups():
    work = Pass(WorkerCalls.train, None, [[0, 1], [2], [5, 9]], [2.0, 1.0, 2.0]).without({1, 2})
    assert (work.groups, work.costs) == ([[0], [5, 9]], [2.0, 2.0])
