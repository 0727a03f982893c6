"""The files of a run: its directory, its checkpoints, and reading them again."""
