"""Tables of shared images: extended row by row, with hard and with soft labels."""

import numpy as np
import pytest

from raysim.data.synthetic_tables import column, extended, gathered, images_of, labels_of


@pytest.mark.parametrize(
    "labels", [np.array([0, 2]), np.array([[0.9, 0.0, 0.1], [0.2, 0.3, 0.5]], np.float32)], ids=["hard", "soft"]
)
def test_rows_are_added_after_those_there_are(labels):
    images = np.arange(2 * 4, dtype=np.float32).reshape(2, 1, 2, 2)
    first = extended(None, gathered([(7, {"images": images, "labels": labels})], t=1))
    both = extended(first, gathered([(9, {"images": -images, "labels": labels[::-1]})], t=4))
    assert np.array_equal(images_of(both), np.concatenate([images, -images]))
    assert np.array_equal(labels_of(both), np.concatenate([labels, labels[::-1]]))
    assert column(both, "client").tolist() == [7, 7, 9, 9]
    assert column(both, "round").tolist() == [1, 1, 4, 4]
