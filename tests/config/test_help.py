"""The settings as text."""

from typing import Literal

from raysim.config import RunConfig, by_topic, help_lines, markdown_table, resolve
from raysim.config.help import TOPICS
from raysim.settings import setting_fields

FIELDS = setting_fields(RunConfig)


def line_of(name: str) -> str:
    (line,) = (line for line in help_lines(FIELDS) if line.startswith(f"  --{name} "))
    return line


def test_help_has_a_line_for_every_setting():
    text = "\n".join(help_lines(FIELDS))
    assert all(f"--{name.replace('_', '-')} " in text for name in resolve([]).settings())


def test_the_words_that_a_setting_accepts_are_in_the_help():
    assert line_of("partition").endswith("; one of iid, classes, column, dirichlet, table (default dirichlet)")
    assert line_of("weighting").endswith("; one of samples, uniform (default samples)")
    assert line_of("optimizer").endswith("; one of sgd, adam (default sgd)")
    literals = [name for name, field in FIELDS.items() if getattr(field.type, "__origin__", None) is Literal]
    assert len(literals) >= 6
    assert all("; one of " in line_of(name.replace("_", "-")) for name in literals)
    assert "| `--optimizer` | `sgd` | local optimiser, created anew for every client and round; one of sgd, adam |" in (
        markdown_table(FIELDS)
    )


def test_every_setting_is_under_one_topic():
    topics = by_topic(RunConfig)
    assert list(topics) == list(TOPICS)
    assert [name for fields in topics.values() for name in fields] == list(FIELDS)
    assert {"beta", "partition", "clients"} <= {*topics["clients"]}
    assert {"lr", "batch_size", "optimizer"} <= {*topics["training"]}
