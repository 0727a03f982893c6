"""Random settings and damaged files through the command line: every case ends soon, in a result or in one line."""
