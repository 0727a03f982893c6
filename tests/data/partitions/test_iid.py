"""Equal shares for every client."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.data.dealing import partition

from .common import check, quick, seeds


@quick
@given(clients=st.integers(1, 10_000), extra=st.integers(0, 5000), seed=seeds)
def test_iid_is_even(clients, extra, seed):
    labels = np.resize(np.arange(10), clients + extra)
    parts = partition(labels, 10, kind="iid", clients=clients, seed=seed)
    check(parts, labels, clients)
    assert np.ptp(parts.sizes) <= 1
    assert parts.notes == ()
