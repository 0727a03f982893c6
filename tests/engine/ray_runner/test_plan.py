import pytest

from raysim.engine.ray_runner.plan import Node, Room, make_plan, truncate
from raysim.errors import InputError, PlanError
from tests.simulate import configure

GIB = 2**30
MACHINE = Node("a", 2, 0, 16 * GIB)
GPUS = Node("a", 2, 4, 64 * GIB)


def plan(nodes, **settings):
    return make_plan(configure(clients=100, active=10, **settings), nodes, client_bytes=2**20)


def test_one_actor_per_cpu_without_gpus():
    made = plan([MACHINE])
    assert (made.actors, made.cpus_per_actor, made.gpus_per_actor, made.server_gpu) == (2, 1.0, 0.0, 0.0)
    assert [made.bundle(slot) for slot in made.slots] == [{"CPU": 2.0}]
    assert "2 client actors (1 CPU each), 2 per node on 1 node, 1 node" in made.describe()


def test_eight_actors_on_four_gpus_are_two_on_each_and_the_server_on_the_first():
    made = plan([GPUS], actors=8)
    assert [slot.actors for slot in made.slots] == [2, 2, 2, 2]
    assert 2 * made.gpus_per_actor + made.server_gpu <= 1
    assert made.gpus_per_actor == 0.45
    assert all(bundle["GPU"] == 1 for bundle in map(made.bundle, made.slots))
    assert sum(bundle["CPU"] for bundle in map(made.bundle, made.slots)) <= GPUS.cpus
    assert "2 per GPU on 4 GPUs" in made.describe()
    assert "0.1 of the first GPU" in made.describe()


def test_more_actors_than_cpus_share_them():
    made = plan([MACHINE], actors=4)
    assert (made.actors, made.cpus_per_actor) == (4, 0.5)


def test_never_more_actors_than_active_clients_unless_asked():
    many = Node("a", 64, 0, 256 * GIB)
    assert plan([many]).actors == 10
    assert plan([many], actors=20).actors == 20
    assert plan([many], actor_per_client=True).actors == 100


def test_actors_spread_over_nodes_by_their_cpus():
    made = plan([Node("a", 2, 0, GIB * 8), Node("b", 4, 0, GIB * 8), Node("c", 2, 0, GIB * 8)], actors=8)
    assert [(s.node, s.actors) for s in made.slots] == [("a", 2), ("b", 4), ("c", 2)]


def test_nodes_without_cpus_or_gpus_are_left_out():
    made = plan([Node("head", 0, 0, GIB), MACHINE])
    assert {slot.node for slot in made.slots} == {"a"}
    made = plan([MACHINE, Node("g", 8, 2, 64 * GIB)])
    assert {slot.node for slot in made.slots} == {"g"}
    assert made.actors == 4


def test_uneven_actors_differ_by_one_per_gpu():
    counts = [slot.actors for slot in plan([GPUS], actors=6).slots]
    assert sorted(counts) == [1, 1, 2, 2]


def test_fewer_actors_than_gpus_reserve_only_what_they_use():
    made = plan([GPUS], actors=2)
    assert [slot.actors for slot in made.slots] == [1, 1]
    assert made.gpus_per_actor == 0.9


def gpu_node(free: float, needed: float = 1.0, cpus: float = 64, gpus: int = 2, **more) -> Node:
    room = Room(int(free * GIB), int(needed * GIB))
    return Node("g", cpus, gpus, 256 * GIB, room=room, **more)


@pytest.mark.parametrize(
    ("node", "per_gpu"),
    [
        (gpu_node(4.0), 3),  # of 4 GiB the server has a tenth, and a client's images take a MiB beside its GiB
        (gpu_node(1.5), 1),
        (gpu_node(0.5), 1),  # one in any case: it may fit all the same
        (gpu_node(80.0), 5),  # as many as clients are active, on two GPUs
        (gpu_node(80.0, cpus=6), 3),  # three CPUs to feed each GPU
        (gpu_node(80.0, cpus=1), 2),  # as many as where nothing is known
    ],
)
def test_actors_per_gpu_follow_from_its_free_memory(node, per_gpu):
    made = plan([node])
    assert [slot.actors for slot in made.slots] == [per_gpu] * 2
    assert f"on a GPU: {per_gpu} × {node.room.needed / GIB + 2**-10:.1f} of {node.room.free / GIB:.1f} GiB" in str(made)


def test_the_fullest_gpu_decides_and_eight_are_enough():
    roomy, full = gpu_node(80.0, gpus=1), Node("f", 64, 1, 64 * GIB, room=Room(3 * GIB, GIB))
    many = {"clients": 200, "active": 200}
    assert {slot.actors for slot in make_plan(configure(**many), [roomy], 2**20).slots} == {8}
    assert {slot.actors for slot in make_plan(configure(**many), [roomy, full], 2**20).slots} == {2}


def test_actors_per_gpu_by_hand():
    made = plan([GPUS], actors_per_gpu=1)
    assert [slot.actors for slot in made.slots] == [1, 1, 1, 1]
    assert plan([gpu_node(1.5)], actors_per_gpu=4).actors == 8
    with pytest.raises(InputError, match="give --actors or --actors-per-gpu, not both"):
        configure(actors=2, actors_per_gpu=2)


def test_gpus_of_one_type_alone():
    nodes = [Node("t", 8, 2, 64 * GIB, gpu_type="T4"), Node("a", 8, 1, 64 * GIB, gpu_type="A100"), MACHINE]
    made = plan(nodes, gpu_type="A100")
    assert [slot.node for slot in made.slots] == ["a"]
    assert made.gpu_type == "A100"
    assert {slot.node for slot in plan(nodes).slots} == {"t", "a"}
    with pytest.raises(PlanError, match=r"--gpu-type H100: the cluster has none; its GPUs are A100, T4"):
        plan(nodes, gpu_type="H100")


@pytest.mark.parametrize(
    ("nodes", "settings", "words"),
    [
        ([MACHINE], {"gpu_type": "A100"}, ["--gpu-type", "no GPU"]),
        ([MACHINE], {"actors_per_gpu": 2}, ["--actors-per-gpu", "no GPU"]),
        ([MACHINE], {"actor_per_client": True}, ["100 clients", "GiB", "--actors 3"]),
        ([MACHINE], {"actors": 500}, ["500 client actors", "16.0 are there", "works"]),
        ([Node("a", 2, 0, GIB // 2)], {}, ["larger machine"]),
        ([GPUS], {"actors": 16, "gpu_fraction": 0.5}, ["16 client actors", "4 GPUs", "--actors 7"]),
        ([MACHINE], {"gpu_fraction": 0.5}, ["no GPU"]),
    ],
)
def test_what_does_not_fit_says_what_was_asked_what_is_there_and_what_works(nodes, settings, words):
    with pytest.raises(PlanError) as caught:
        plan(nodes, **settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_setting_a_refusal_names_does_work():
    with pytest.raises(PlanError, match="--actors 7"):
        plan([GPUS], actors=16, gpu_fraction=0.5)
    assert plan([GPUS], actors=7, gpu_fraction=0.5).actors == 7


def test_shares_are_cut_to_what_ray_keeps():
    assert truncate(1 / 3) == 0.3333
    assert truncate(0.45) == 0.45
