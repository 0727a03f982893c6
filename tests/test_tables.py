"""One table in every form, written down by hand."""

import json

from raysim.tables import Table

TABLE = Table(
    ["run", "method", "final %"],
    [["a|b", "fedavg", "9.50"], ["50 % of_it", "hfmds", "–"]],
    [{"run": "a|b", "final": 0.095}, {"run": "50 %, of it", "final": None}],
    texts=2,
)


def test_as_text_figures_are_on_the_right():
    assert TABLE.text().splitlines() == [
        "run         method  final %",
        "a|b         fedavg     9.50",
        "50 % of_it  hfmds         –",
    ]


def test_in_markdown_a_bar_in_a_cell_begins_no_other():
    assert TABLE.markdown().splitlines() == [
        "| run | method | final % |",
        "| --- | --- | --- |",
        "| a&#124;b | fedavg | 9.50 |",
        "| 50 % of_it | hfmds | – |",
    ]


def test_in_latex_a_cell_is_text():
    assert TABLE.latex().splitlines() == [
        r"\begin{tabular}{llr}",
        r"run & method & final \% \\",
        r"\hline",
        r"a|b & fedavg & 9.50 \\",
        r"50 \% of\_it & hfmds & -- \\",
        r"\end{tabular}",
    ]


def test_as_csv_what_is_none_is_empty():
    assert TABLE.csv().splitlines() == ["run,final", "a|b,0.095", '"50 %, of it",']


def test_as_json_figures_are_numbers():
    assert json.loads(TABLE.json()) == [{"run": "a|b", "final": 0.095}, {"run": "50 %, of it", "final": None}]
