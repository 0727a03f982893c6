"""The papers as data: their settings, their tables as sweeps and their printed figures, in TOML files beside this one.

A file is read when something in it is asked for first; importing raysim and starting a run read none.

A paper, such as `hfmds.toml`, has its settings; those of a method's part are written `part.setting`:

    [settings.NAME]  settings that several presets share
    [presets.NAME]   a preset: `about`, one line; `from`, the shared settings it begins with, of which later ones win;
                     and its own settings, which win over those
    [methods]        rows of its tables that are not just the method of their name, each with its settings
    [tuned]          methods of which its tables print the best of several values of one setting

A table or figure of a paper, such as `hfmds-table2.toml`, has the sweeps that compute it:

    [sweeps.NAME]    `about`, one line; `setting`, what all runs have, on a preset; and any of the following of its own
    rows, columns    each row's and each column's settings by name, a setting with a list of values being a row for each
                     value; or a list of names, which are methods for rows and partitions for columns
    methods          the file of the paper that has [methods] and [tuned] for a list of rows
    seeds            as many as the paper has trials; without, the one of the setting
    figures          accuracies in % as printed: row → one, or one for each column

A file with `paper` is of a table whose cells are known by dataset, partition and method, so that any run finds its own:

    paper, measure             the table's name, and the figure of a run's summary to compare with
    figures.DATASET            method → accuracies as printed, `mean` or `mean ± std`, for the partitions in `columns`
    psnr.DATASET, gflops.…     the same of PSNR in dB; a client's GFLOPs, one for all columns
"""

from raysim.papers.figure import Figure, cell, find, method_name, partition_name
from raysim.papers.files import Settings
from raysim.papers.preset import Preset, presets, settings_of
from raysim.papers.sweep import Axis, Sweep, sweeps

__all__ = [
    "Axis", "Figure", "Preset", "Settings", "Sweep", "cell", "find", "method_name", "partition_name", "presets",
    "settings_of", "sweeps",
]  # fmt: skip
