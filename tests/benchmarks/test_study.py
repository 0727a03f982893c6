"""Every row of every study is a run that raysim accepts; the runs themselves take hours."""

import pytest

from benchmarks.study import STUDIES, without_absent_parts
from tests.config.words import from_words


@pytest.mark.parametrize("study", STUDIES)
def test_every_row_is_accepted(study):
    for row in STUDIES[study].values():
        settings = {
            key: value for key, value in without_absent_parts(row).items() if key != "start-from"
        }  # a row's name
        from_words(*(word for key, value in settings.items() for word in (f"--{key}", str(value))))
