"""The settings as text."""

from raysim.config import RunConfig, help_lines, markdown_table, resolve


def test_help_has_a_line_for_every_setting():
    text = "\n".join(help_lines(RunConfig))
    assert all(f"--{name.replace('_', '-')} " in text for name in resolve([]).settings())


def test_choices_that_are_found_are_in_the_help():
    (line,) = (line for line in help_lines(RunConfig) if line.startswith("  --partition "))
    assert line.endswith(": iid, classes, column, dirichlet, table (default dirichlet)")
    assert "| `--partition` | `dirichlet` |" in markdown_table(RunConfig)
