"""What sharing something gives away, measured."""
