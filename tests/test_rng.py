from raysim.rng import stream


def test_every_part_of_the_key_counts():
    keys = [(1, "a", 1, 1), (2, "a", 1, 1), (1, "b", 1, 1), (1, "a", 2, 1), (1, "a", 1, 2)]
    draws = [stream(*key).random() for key in keys]
    assert len(set(draws)) == 5
    assert stream(1, "a", 1, 1).random() == draws[0]


def test_the_stream_is_what_it_was():
    """Published hashes rest on these numbers: a change here is a change of every result."""
    assert stream(0, "batches", 1, 2).permutation(6).tolist() == [3, 1, 2, 4, 0, 5]
    assert stream(7, "cohort", 3).choice(100, 4, replace=False).tolist() == [56, 12, 88, 84]
