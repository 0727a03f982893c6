"""Methods made for tests, named by module: `--method tests.parts.sleepy`."""
