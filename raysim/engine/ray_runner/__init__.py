"""Running on Ray: everything that knows of its scheduling, from the placement plan to the dispatch of a pass."""
