"""Trackers with a name (`--track`): one file each, named after the package it writes to, with one `Callback`."""
