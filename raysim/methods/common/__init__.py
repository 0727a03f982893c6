"""Code that several methods share, none of which is discovered as a method."""
